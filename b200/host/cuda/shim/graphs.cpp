// CUDA graphs over a B200 in software, of the runtime and the driver: nodes, captures, launches.
//
// It is compiled for programs that call one of these functions (../build.py). What they do is on
// the Python side (../graphs.py).
#include <cuda.h>
#include <cuda_runtime.h>

#include "backend.h"

using b200::call;
using b200::word;

namespace {

cudaError_t result(int code) {
  if (code) call("note_error", {word(code)});
  return static_cast<cudaError_t>(code);
}
CUresult driver_result(int code) { return static_cast<CUresult>(b200::driver_code(code)); }

template <typename Parameters>
b200::Launch launch_of(const Parameters& p, dim3 grid, dim3 block) {
  b200::Launch launch{};
  const uint32_t sizes[6] = {grid.x, grid.y, grid.z, block.x, block.y, block.z};
  std::memcpy(launch.grid, sizes, 12);
  std::memcpy(launch.block, sizes + 3, 12);
  launch.dynamic_smem = p.sharedMemBytes;
  launch.arguments = p.kernelParams;
  launch.packed = p.extra;
  return launch;
}
b200::Launch launch_of(const cudaKernelNodeParams& p) {
  return launch_of(p, p.gridDim, p.blockDim);
}
b200::Launch launch_of(const CUDA_KERNEL_NODE_PARAMS& p) {
  return launch_of(p, dim3(p.gridDimX, p.gridDimY, p.gridDimZ),
                   dim3(p.blockDimX, p.blockDimY, p.blockDimZ));
}
uint64_t kernel_of(const CUDA_KERNEL_NODE_PARAMS& p) { return p.func ? word(p.func) : word(p.kern); }

// to, from, bytes of a row, rows, slices; steps of rows and slices at the destination, the source
struct Copy {
  uint64_t words[9];
};
Copy copy_of(const void* to, const void* from, size_t nbytes) {
  return {{word(to), word(from), nbytes, 1, 1, nbytes, nbytes, nbytes, nbytes}};
}
const char* at(const cudaPitchedPtr& memory, const cudaPos& pos) {
  return static_cast<const char*>(memory.ptr) + pos.x +
         memory.pitch * (pos.y + memory.ysize * pos.z);
}
Copy copy_of(const cudaMemcpy3DParms& p) {
  if (p.srcArray || p.dstArray) call("missing", {word("cudaMemcpy3DParms with a cudaArray")});
  return {{word(at(p.dstPtr, p.dstPos)), word(at(p.srcPtr, p.srcPos)), p.extent.width,
           p.extent.height, p.extent.depth, p.dstPtr.pitch, p.dstPtr.pitch * p.dstPtr.ysize,
           p.srcPtr.pitch, p.srcPtr.pitch * p.srcPtr.ysize}};
}
uint64_t place(CUmemorytype type, const void* host, CUdeviceptr device, size_t x, size_t y,
               size_t z, size_t pitch, size_t height) {
  if (type == CU_MEMORYTYPE_ARRAY) call("missing", {word("CUDA_MEMCPY3D with a CUarray")});
  const uint64_t start = type == CU_MEMORYTYPE_HOST ? word(host) : device;
  return start + x + pitch * (y + height * z);
}
Copy copy_of(const CUDA_MEMCPY3D& p) {
  return {{place(p.dstMemoryType, p.dstHost, p.dstDevice, p.dstXInBytes, p.dstY, p.dstZ,
                 p.dstPitch, p.dstHeight),
           place(p.srcMemoryType, p.srcHost, p.srcDevice, p.srcXInBytes, p.srcY, p.srcZ,
                 p.srcPitch, p.srcHeight),
           p.WidthInBytes, p.Height, p.Depth, p.dstPitch, p.dstPitch * p.dstHeight, p.srcPitch,
           p.srcPitch * p.srcHeight}};
}

// address, value, bytes of an element, elements of a row, rows, bytes from row to row
struct Fill {
  uint64_t words[6];
};
template <typename Parameters>
Fill fill_of(const Parameters& p) {
  return {{word(p.dst), p.value, p.elementSize, p.width, p.height, p.pitch}};
}

// A new node, with the words of its call behind those that each node has.
template <typename Node, typename Graph, typename... Words>
int add(const char* kind, Node* out, Graph graph, const Node* after, size_t count, Words... words) {
  return call(kind, {word(out), word(graph), word(after), count, words...});
}

}  // namespace

extern "C" {

// --- graphs and their nodes
cudaError_t cudaGraphCreate(cudaGraph_t* graph, unsigned) {
  return result(call("graph_create", {word(graph)}));
}
cudaError_t cudaGraphClone(cudaGraph_t* out, cudaGraph_t graph) {
  return result(call("graph_clone", {word(out), word(graph)}));
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  return result(call("graph_destroy", {word(graph)}));
}
cudaError_t cudaGraphAddKernelNode(cudaGraphNode_t* out, cudaGraph_t graph,
                                   const cudaGraphNode_t* after, size_t count,
                                   const cudaKernelNodeParams* p) {
  const auto launch = launch_of(*p);
  return result(add("graph_add_kernel", out, graph, after, count, word(p->func), word(&launch)));
}
cudaError_t cudaGraphAddMemcpyNode(cudaGraphNode_t* out, cudaGraph_t graph,
                                   const cudaGraphNode_t* after, size_t count,
                                   const cudaMemcpy3DParms* p) {
  const auto copy = copy_of(*p);
  return result(add("graph_add_copy", out, graph, after, count, word(&copy)));
}
cudaError_t cudaGraphAddMemcpyNode1D(cudaGraphNode_t* out, cudaGraph_t graph,
                                     const cudaGraphNode_t* after, size_t count, void* to,
                                     const void* from, size_t nbytes, cudaMemcpyKind) {
  const auto copy = copy_of(to, from, nbytes);
  return result(add("graph_add_copy", out, graph, after, count, word(&copy)));
}
cudaError_t cudaGraphAddMemsetNode(cudaGraphNode_t* out, cudaGraph_t graph,
                                   const cudaGraphNode_t* after, size_t count,
                                   const cudaMemsetParams* p) {
  const auto fill = fill_of(*p);
  return result(add("graph_add_fill", out, graph, after, count, word(&fill)));
}
cudaError_t cudaGraphAddHostNode(cudaGraphNode_t* out, cudaGraph_t graph,
                                 const cudaGraphNode_t* after, size_t count,
                                 const cudaHostNodeParams* p) {
  return result(add("graph_add_host", out, graph, after, count, word(p->fn), word(p->userData)));
}
cudaError_t cudaGraphAddEmptyNode(cudaGraphNode_t* out, cudaGraph_t graph,
                                  const cudaGraphNode_t* after, size_t count) {
  return result(add("graph_add_empty", out, graph, after, count));
}
cudaError_t cudaGraphAddChildGraphNode(cudaGraphNode_t* out, cudaGraph_t graph,
                                       const cudaGraphNode_t* after, size_t count,
                                       cudaGraph_t child) {
  return result(add("graph_add_child", out, graph, after, count, word(child)));
}
cudaError_t cudaGraphAddMemAllocNode(cudaGraphNode_t* out, cudaGraph_t graph,
                                     const cudaGraphNode_t* after, size_t count,
                                     cudaMemAllocNodeParams* p) {
  return result(
      add("graph_add_allocation", out, graph, after, count, p->bytesize, word(&p->dptr)));
}
cudaError_t cudaGraphAddMemFreeNode(cudaGraphNode_t* out, cudaGraph_t graph,
                                    const cudaGraphNode_t* after, size_t count, void* address) {
  return result(add("graph_add_free", out, graph, after, count, word(address)));
}
cudaError_t cudaDeviceGetGraphMemAttribute(int, cudaGraphMemAttributeType number, void* out) {
  return result(call("graph_memory_attribute", {word(number), word(out)}));
}
cudaError_t cudaDeviceGraphMemTrim(int) { return cudaSuccess; }  // nothing is kept
cudaError_t cudaGraphAddDependencies(cudaGraph_t graph, const cudaGraphNode_t* from,
                                     const cudaGraphNode_t* to, const cudaGraphEdgeData*,
                                     size_t count) {
  return result(call("graph_add_dependencies", {word(graph), word(from), word(to), count}));
}
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
  return result(call("graph_nodes", {word(graph), word(nodes), word(count), 0}));
}
cudaError_t cudaGraphGetRootNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
  return result(call("graph_nodes", {word(graph), word(nodes), word(count), 1}));
}
cudaError_t cudaGraphNodeGetType(cudaGraphNode_t node, cudaGraphNodeType* type) {
  return result(call("graph_kind_of", {word(node), word(type)}));
}
cudaError_t cudaGraphKernelNodeSetParams(cudaGraphNode_t node, const cudaKernelNodeParams* p) {
  const auto launch = launch_of(*p);
  return result(call("graph_set_kernel", {word(node), word(p->func), word(&launch), 0}));
}
cudaError_t cudaGraphMemsetNodeSetParams(cudaGraphNode_t node, const cudaMemsetParams* p) {
  const auto fill = fill_of(*p);
  return result(call("graph_set_fill", {word(node), word(&fill), 0}));
}
cudaError_t cudaGraphMemcpyNodeSetParams(cudaGraphNode_t node, const cudaMemcpy3DParms* p) {
  const auto copy = copy_of(*p);
  return result(call("graph_set_copy", {word(node), word(&copy), 0}));
}

// --- executable graphs
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* out, cudaGraph_t graph,
                                          unsigned long long) {
  return result(call("graph_instantiate", {word(out), word(graph)}));
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* out, cudaGraph_t graph, unsigned long long flags) {
  return cudaGraphInstantiateWithFlags(out, graph, flags);
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
  return result(call("graph_destroy_executable", {word(graph)}));
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t queue) {
  return result(call("graph_launch", {word(graph), word(queue)}));
}
cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaGraphExecKernelNodeSetParams(cudaGraphExec_t graph, cudaGraphNode_t node,
                                             const cudaKernelNodeParams* p) {
  const auto launch = launch_of(*p);
  return result(call("graph_set_kernel", {word(node), word(p->func), word(&launch), word(graph)}));
}
cudaError_t cudaGraphExecMemcpyNodeSetParams(cudaGraphExec_t graph, cudaGraphNode_t node,
                                             const cudaMemcpy3DParms* p) {
  const auto copy = copy_of(*p);
  return result(call("graph_set_copy", {word(node), word(&copy), word(graph)}));
}
cudaError_t cudaGraphExecMemcpyNodeSetParams1D(cudaGraphExec_t graph, cudaGraphNode_t node, void* to,
                                               const void* from, size_t nbytes, cudaMemcpyKind) {
  const auto copy = copy_of(to, from, nbytes);
  return result(call("graph_set_copy", {word(node), word(&copy), word(graph)}));
}
cudaError_t cudaGraphExecMemsetNodeSetParams(cudaGraphExec_t graph, cudaGraphNode_t node,
                                             const cudaMemsetParams* p) {
  const auto fill = fill_of(*p);
  return result(call("graph_set_fill", {word(node), word(&fill), word(graph)}));
}
cudaError_t cudaGraphExecUpdate(cudaGraphExec_t executable, cudaGraph_t graph,
                                cudaGraphExecUpdateResultInfo* info) {
  const int code = call("graph_update", {word(executable), word(graph)});
  if (info) {
    std::memset(info, 0, sizeof *info);
    info->result = code ? cudaGraphExecUpdateError : cudaGraphExecUpdateSuccess;
  }
  return result(code);
}

// --- captures, and functions of the host in a queue
cudaError_t cudaStreamBeginCapture(cudaStream_t queue, cudaStreamCaptureMode) {
  return result(call("graph_begin_capture", {word(queue)}));
}
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t* graph) {
  return result(call("graph_end_capture", {word(graph)}));
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) { return cudaSuccess; }
cudaError_t cudaLaunchHostFunc(cudaStream_t queue, cudaHostFn_t function, void* data) {
  return result(call("graph_call_host", {word(function), word(data), word(queue)}));
}

// --- the driver's names
CUresult cuGraphCreate(CUgraph* graph, unsigned) {
  return driver_result(call("graph_create", {word(graph)}));
}
CUresult cuGraphDestroy(CUgraph graph) {
  return driver_result(call("graph_destroy", {word(graph)}));
}
CUresult cuGraphAddKernelNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* after,
                              size_t count, const CUDA_KERNEL_NODE_PARAMS* p) {
  const auto launch = launch_of(*p);
  return driver_result(
      add("graph_add_kernel", out, graph, after, count, kernel_of(*p), word(&launch)));
}
CUresult cuGraphAddMemcpyNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* after,
                              size_t count, const CUDA_MEMCPY3D* p, CUcontext) {
  const auto copy = copy_of(*p);
  return driver_result(add("graph_add_copy", out, graph, after, count, word(&copy)));
}
CUresult cuGraphAddMemsetNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* after,
                              size_t count, const CUDA_MEMSET_NODE_PARAMS* p, CUcontext) {
  const auto fill = fill_of(*p);
  return driver_result(add("graph_add_fill", out, graph, after, count, word(&fill)));
}
CUresult cuGraphAddHostNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* after, size_t count,
                            const CUDA_HOST_NODE_PARAMS* p) {
  return driver_result(
      add("graph_add_host", out, graph, after, count, word(p->fn), word(p->userData)));
}
CUresult cuGraphAddEmptyNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* after,
                             size_t count) {
  return driver_result(add("graph_add_empty", out, graph, after, count));
}
CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode* nodes, size_t* count) {
  return driver_result(call("graph_nodes", {word(graph), word(nodes), word(count), 0}));
}
CUresult cuGraphInstantiate(CUgraphExec* out, CUgraph graph, unsigned long long) {
  return driver_result(call("graph_instantiate", {word(out), word(graph)}));
}
CUresult cuGraphExecDestroy(CUgraphExec graph) {
  return driver_result(call("graph_destroy_executable", {word(graph)}));
}
CUresult cuGraphLaunch(CUgraphExec graph, CUstream queue) {
  return driver_result(call("graph_launch", {word(graph), word(queue)}));
}
CUresult cuGraphUpload(CUgraphExec, CUstream) { return CUDA_SUCCESS; }
CUresult cuStreamBeginCapture(CUstream queue, CUstreamCaptureMode) {
  return driver_result(call("graph_begin_capture", {word(queue)}));
}
CUresult cuStreamEndCapture(CUstream, CUgraph* graph) {
  return driver_result(call("graph_end_capture", {word(graph)}));
}

}  // extern "C"

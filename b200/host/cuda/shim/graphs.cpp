// CUDA graphs of the runtime over a B200 in software: nodes, captures, launches.
//
// It is compiled for programs that call one of these functions (../stand_in.py). What they do is on
// the Python side (../graphs.py).
#include <cuda.h>
#include <cuda_runtime.h>

#include "graph_words.h"
#include "runtime.h"

using namespace b200;
using namespace b200::runtime;

extern "C" {

// --- graphs and their nodes
cudaError_t cudaGraphCreate(cudaGraph_t* graph, unsigned) { return ask("graph_create", graph); }
cudaError_t cudaGraphClone(cudaGraph_t* out, cudaGraph_t graph) {
  return ask("graph_clone", out, graph);
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return ask("graph_destroy", graph); }
cudaError_t cudaGraphAddKernelNode(cudaGraphNode_t* out, cudaGraph_t graph,
                                   const cudaGraphNode_t* after, size_t count,
                                   const cudaKernelNodeParams* p) {
  const auto launch = launch_of(*p);
  return ask("graph_add", out, graph, after, count, cudaGraphNodeTypeKernel, p->func, &launch);
}
cudaError_t cudaGraphAddMemcpyNode(cudaGraphNode_t* out, cudaGraph_t graph,
                                   const cudaGraphNode_t* after, size_t count,
                                   const cudaMemcpy3DParms* p) {
  const auto copy = copy_of(*p);
  return ask("graph_add", out, graph, after, count, cudaGraphNodeTypeMemcpy, &copy);
}
cudaError_t cudaGraphAddMemcpyNode1D(cudaGraphNode_t* out, cudaGraph_t graph,
                                     const cudaGraphNode_t* after, size_t count, void* to,
                                     const void* from, size_t nbytes, cudaMemcpyKind) {
  const auto copy = copy_of(to, from, nbytes);
  return ask("graph_add", out, graph, after, count, cudaGraphNodeTypeMemcpy, &copy);
}
cudaError_t cudaGraphAddMemsetNode(cudaGraphNode_t* out, cudaGraph_t graph,
                                   const cudaGraphNode_t* after, size_t count,
                                   const cudaMemsetParams* p) {
  const auto fill = fill_of(*p);
  return ask("graph_add", out, graph, after, count, cudaGraphNodeTypeMemset, &fill);
}
cudaError_t cudaGraphAddHostNode(cudaGraphNode_t* out, cudaGraph_t graph,
                                 const cudaGraphNode_t* after, size_t count,
                                 const cudaHostNodeParams* p) {
  return ask("graph_add", out, graph, after, count, cudaGraphNodeTypeHost, p->fn, p->userData);
}
cudaError_t cudaGraphAddEmptyNode(cudaGraphNode_t* out, cudaGraph_t graph,
                                  const cudaGraphNode_t* after, size_t count) {
  return ask("graph_add_empty", out, graph, after, count);
}
cudaError_t cudaGraphAddChildGraphNode(cudaGraphNode_t* out, cudaGraph_t graph,
                                       const cudaGraphNode_t* after, size_t count,
                                       cudaGraph_t child) {
  return ask("graph_add_child", out, graph, after, count, child);
}
cudaError_t cudaGraphAddMemAllocNode(cudaGraphNode_t* out, cudaGraph_t graph,
                                     const cudaGraphNode_t* after, size_t count,
                                     cudaMemAllocNodeParams* p) {
  return ask("graph_add", out, graph, after, count, cudaGraphNodeTypeMemAlloc, p->bytesize, &p->dptr);
}
cudaError_t cudaGraphAddMemFreeNode(cudaGraphNode_t* out, cudaGraph_t graph,
                                    const cudaGraphNode_t* after, size_t count, void* address) {
  return ask("graph_add", out, graph, after, count, cudaGraphNodeTypeMemFree, address);
}
cudaError_t cudaDeviceGetGraphMemAttribute(int, cudaGraphMemAttributeType number, void* out) {
  return ask("graphmemory_attribute", number, out);
}
cudaError_t cudaDeviceGraphMemTrim(int) { return ask("graphmemory_trim"); }
cudaError_t cudaGraphAddDependencies(cudaGraph_t graph, const cudaGraphNode_t* from,
                                     const cudaGraphNode_t* to, const cudaGraphEdgeData*,
                                     size_t count) {
  return ask("graph_add_dependencies", graph, from, to, count);
}
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
  return ask("graph_nodes", graph, nodes, count, 0);
}
cudaError_t cudaGraphGetRootNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
  return ask("graph_nodes", graph, nodes, count, 1);
}
cudaError_t cudaGraphNodeGetType(cudaGraphNode_t node, cudaGraphNodeType* type) {
  return ask("graph_kind_of", node, type);
}
cudaError_t cudaGraphKernelNodeSetParams(cudaGraphNode_t node, const cudaKernelNodeParams* p) {
  const auto launch = launch_of(*p);
  return ask("graph_set", node, 0, cudaGraphNodeTypeKernel, p->func, &launch);
}
cudaError_t cudaGraphMemsetNodeSetParams(cudaGraphNode_t node, const cudaMemsetParams* p) {
  const auto fill = fill_of(*p);
  return ask("graph_set", node, 0, cudaGraphNodeTypeMemset, &fill);
}
cudaError_t cudaGraphMemcpyNodeSetParams(cudaGraphNode_t node, const cudaMemcpy3DParms* p) {
  const auto copy = copy_of(*p);
  return ask("graph_set", node, 0, cudaGraphNodeTypeMemcpy, &copy);
}

// --- executable graphs
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* out, cudaGraph_t graph,
                                          unsigned long long flags) {
  return ask("graph_instantiate", out, graph, flags);
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* out, cudaGraph_t graph, unsigned long long flags) {
  return cudaGraphInstantiateWithFlags(out, graph, flags);
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
  return ask("graph_destroy_executable", graph);
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t queue) {
  return ask("graph_launch", graph, queue);
}
cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaGraphExecKernelNodeSetParams(cudaGraphExec_t graph, cudaGraphNode_t node,
                                             const cudaKernelNodeParams* p) {
  const auto launch = launch_of(*p);
  return ask("graph_set", node, graph, cudaGraphNodeTypeKernel, p->func, &launch);
}
cudaError_t cudaGraphExecMemcpyNodeSetParams(cudaGraphExec_t graph, cudaGraphNode_t node,
                                             const cudaMemcpy3DParms* p) {
  const auto copy = copy_of(*p);
  return ask("graph_set", node, graph, cudaGraphNodeTypeMemcpy, &copy);
}
cudaError_t cudaGraphExecMemcpyNodeSetParams1D(cudaGraphExec_t graph, cudaGraphNode_t node, void* to,
                                               const void* from, size_t nbytes, cudaMemcpyKind) {
  const auto copy = copy_of(to, from, nbytes);
  return ask("graph_set", node, graph, cudaGraphNodeTypeMemcpy, &copy);
}
cudaError_t cudaGraphExecMemsetNodeSetParams(cudaGraphExec_t graph, cudaGraphNode_t node,
                                             const cudaMemsetParams* p) {
  const auto fill = fill_of(*p);
  return ask("graph_set", node, graph, cudaGraphNodeTypeMemset, &fill);
}
cudaError_t cudaGraphExecUpdate(cudaGraphExec_t executable, cudaGraph_t graph,
                                cudaGraphExecUpdateResultInfo* info) {
  uint64_t changed = cudaGraphExecUpdateError;
  const int code = call("graph_update", executable, graph, &changed);
  if (info) {
    std::memset(info, 0, sizeof *info);
    info->result = code ? static_cast<cudaGraphExecUpdateResult>(changed) : cudaGraphExecUpdateSuccess;
  }
  return result(code);
}

// --- captures, and functions of the host in a queue
cudaError_t cudaStreamBeginCapture(cudaStream_t queue, cudaStreamCaptureMode) {
  return ask("graph_begin_capture", queue);
}
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t* graph) {
  return ask("graph_end_capture", graph);
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) { return cudaSuccess; }
cudaError_t cudaLaunchHostFunc(cudaStream_t queue, cudaHostFn_t function, void* data) {
  return ask("graph_call_host", function, data, queue);
}

}  // extern "C"

// CUDA graphs of the runtime over a B200 in software: nodes, captures, launches.
//
// It is compiled for programs that call one of these functions (../stand_in.py). What they do is on
// the Python side (../graphs.py).
#include <cuda.h>
#include <cuda_runtime.h>

#include "backend.h"
#include "graph_words.h"

using namespace b200;

namespace {

cudaError_t result(int code) {
  if (code) call("note_error", {word(code)});
  return static_cast<cudaError_t>(code);
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
  return result(call("graphmemory_attribute", {word(number), word(out)}));
}
cudaError_t cudaDeviceGraphMemTrim(int) { return result(call("graphmemory_trim", {})); }
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
                                          unsigned long long flags) {
  return result(call("graph_instantiate", {word(out), word(graph), flags}));
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
  uint64_t changed = cudaGraphExecUpdateError;
  const int code = call("graph_update", {word(executable), word(graph), word(&changed)});
  if (info) {
    std::memset(info, 0, sizeof *info);
    info->result = code ? static_cast<cudaGraphExecUpdateResult>(changed) : cudaGraphExecUpdateSuccess;
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

}  // extern "C"

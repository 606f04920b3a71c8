// CUDA graphs of the driver over a B200 in software: nodes of every kind that is modelled, their
// edges and parameters, and objects of the program that live as long as a graph.
//
// It is compiled for programs that call one of these functions (../build.py).
#include <cuda.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "backend.h"
#include "graph_words.h"

using namespace b200;

namespace {

CUresult result(int code) { return static_cast<CUresult>(b200::driver_code(code)); }

std::mutex mutex;

// --- parameters of nodes, as they were given
std::map<CUgraphNode, CUgraphNodeParams>& given() {
  static auto* all = new std::map<CUgraphNode, CUgraphNodeParams>;
  return *all;
}
template <typename Parameters>
void keep(CUgraphNode node, CUgraphNodeType type, Parameters CUgraphNodeParams::*member, const Parameters& p) {
  std::lock_guard<std::mutex> lock(mutex);
  auto& kept = given()[node];
  std::memset(&kept, 0, sizeof kept);
  kept.type = type;
  kept.*member = p;
}
template <typename Parameters>
CUresult tell(CUgraphNode node, CUgraphNodeType type, Parameters CUgraphNodeParams::*member, Parameters* out) {
  std::lock_guard<std::mutex> lock(mutex);
  const auto found = given().find(node);
  if (found == given().end() || found->second.type != type) return CUDA_ERROR_INVALID_VALUE;
  *out = found->second.*member;
  return CUDA_SUCCESS;
}

// --- objects of the program
struct Object {
  CUhostFn destroy;
  void* data;
  unsigned references;
};
void release(Object* object, unsigned count) {
  object->references -= std::min(count, object->references);
  if (object->references) return;
  const auto destroy = object->destroy;
  void* data = object->data;
  delete object;
  destroy(data);
}
using Owned = std::vector<std::pair<Object*, unsigned>>;
std::map<uint64_t, Owned>& owned() {  // by graph, executable ones, too
  static auto* all = new std::map<uint64_t, Owned>;
  return *all;
}

template <typename... Words>
CUresult add(const char* kind, CUgraphNode* out, CUgraph graph, const CUgraphNode* after, size_t count,
             Words... words) {
  return result(call(kind, {word(out), word(graph), word(after), count, words...}));
}

// Handles of nodes, of which there may be more than there is room for. what: 0 those before a node, 1
// those after it.
CUresult neighbours(CUgraphNode node, CUgraphNode* out, CUgraphEdgeData* edges, size_t* count, int what) {
  const size_t room = *count;
  if (const int code = call("graph_neighbours", {word(node), word(out), word(count), word(what)}))
    return result(code);
  if (edges && out) std::memset(edges, 0, std::min(room, *count) * sizeof *edges);
  return CUDA_SUCCESS;
}

CUresult add_event(CUgraphNode* out, CUgraph graph, const CUgraphNode* after, size_t count, CUevent event,
                   CUgraphNodeType type) {
  return add("graph_add_event", out, graph, after, count, word(type), word(event));
}

// A graph that is copied, or made executable, keeps what the first one keeps.
void share_objects(uint64_t from, uint64_t to) {
  std::lock_guard<std::mutex> lock(mutex);
  const auto found = owned().find(from);
  if (found == owned().end()) return;
  const Owned objects = found->second;
  for (auto& entry : objects) entry.first->references += entry.second;
  auto& more = owned()[to];
  more.insert(more.end(), objects.begin(), objects.end());
}
void release_objects(uint64_t graph) {
  Owned ending;
  {
    std::lock_guard<std::mutex> lock(mutex);
    const auto found = owned().find(graph);
    if (found == owned().end()) return;
    ending.swap(found->second);
    owned().erase(found);
  }
  for (auto& entry : ending) release(entry.first, entry.second);
}

}  // namespace

extern "C" {

// --- graphs and their nodes
CUresult cuGraphCreate(CUgraph* graph, unsigned) { return result(call("graph_create", {word(graph)})); }
CUresult cuGraphDestroy(CUgraph graph) {
  const auto error = result(call("graph_destroy", {word(graph)}));
  if (!error) release_objects(word(graph));
  return error;
}
CUresult cuGraphAddKernelNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* after, size_t count,
                              const CUDA_KERNEL_NODE_PARAMS* p) {
  const auto launch = launch_of(*p);
  const auto error = add("graph_add_kernel", out, graph, after, count, kernel_of(*p), word(&launch));
  if (!error) {
    CUDA_KERNEL_NODE_PARAMS_v3 kept{};
    std::memcpy(&kept, p, std::min(sizeof kept, sizeof *p));
    keep(*out, CU_GRAPH_NODE_TYPE_KERNEL, &CUgraphNodeParams::kernel, kept);
  }
  return error;
}
CUresult cuGraphAddMemcpyNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* after, size_t count,
                              const CUDA_MEMCPY3D* p, CUcontext context) {
  const auto copy = copy_of(*p);
  const auto error = add("graph_add_copy", out, graph, after, count, word(&copy));
  if (!error) {
    CUDA_MEMCPY_NODE_PARAMS kept{};
    kept.copyCtx = context;
    kept.copyParams = *p;
    keep(*out, CU_GRAPH_NODE_TYPE_MEMCPY, &CUgraphNodeParams::memcpy, kept);
  }
  return error;
}
CUresult cuGraphAddMemsetNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* after, size_t count,
                              const CUDA_MEMSET_NODE_PARAMS* p, CUcontext) {
  const auto fill = fill_of(*p);
  const auto error = add("graph_add_fill", out, graph, after, count, word(&fill));
  if (!error) {
    CUDA_MEMSET_NODE_PARAMS_v2 kept{};
    std::memcpy(&kept, p, std::min(sizeof kept, sizeof *p));
    keep(*out, CU_GRAPH_NODE_TYPE_MEMSET, &CUgraphNodeParams::memset, kept);
  }
  return error;
}
CUresult cuGraphAddHostNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* after, size_t count,
                            const CUDA_HOST_NODE_PARAMS* p) {
  const auto error =
      add("graph_add_host", out, graph, after, count, word(p->fn), word(p->userData));
  if (!error) {
    CUDA_HOST_NODE_PARAMS_v2 kept{};
    std::memcpy(&kept, p, std::min(sizeof kept, sizeof *p));
    keep(*out, CU_GRAPH_NODE_TYPE_HOST, &CUgraphNodeParams::host, kept);
  }
  return error;
}
CUresult cuGraphAddEmptyNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* after, size_t count) {
  return add("graph_add_empty", out, graph, after, count);
}
CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode* nodes, size_t* count) {
  return result(call("graph_nodes", {word(graph), word(nodes), word(count), 0}));
}
CUresult cuGraphInstantiate(CUgraphExec* out, CUgraph graph, unsigned long long) {
  const auto error = result(call("graph_instantiate", {word(out), word(graph)}));
  if (!error) share_objects(word(graph), word(*out));
  return error;
}
CUresult cuGraphExecDestroy(CUgraphExec graph) {
  const auto error = result(call("graph_destroy_executable", {word(graph)}));
  if (!error) release_objects(word(graph));
  return error;
}
CUresult cuGraphLaunch(CUgraphExec graph, CUstream queue) {
  return result(call("graph_launch", {word(graph), word(queue)}));
}
CUresult cuGraphUpload(CUgraphExec, CUstream) { return CUDA_SUCCESS; }
CUresult cuStreamBeginCapture(CUstream queue, CUstreamCaptureMode) {
  return result(call("graph_begin_capture", {word(queue)}));
}
CUresult cuStreamEndCapture(CUstream, CUgraph* graph) {
  return result(call("graph_end_capture", {word(graph)}));
}
CUresult cuGraphAddChildGraphNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* after, size_t count,
                                  CUgraph child) {
  CUgraph own = nullptr;
  if (const auto error = cuGraphClone(&own, child)) return error;
  const auto error = add("graph_add_child", out, graph, after, count, word(own));
  if (!error) keep(*out, CU_GRAPH_NODE_TYPE_GRAPH, &CUgraphNodeParams::graph, {own});
  return error;
}
CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode node, CUgraph* out) {
  CUDA_CHILD_GRAPH_NODE_PARAMS p{};
  const auto error = tell(node, CU_GRAPH_NODE_TYPE_GRAPH, &CUgraphNodeParams::graph, &p);
  if (!error) *out = p.graph;
  return error;
}
CUresult cuGraphAddEventRecordNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* after, size_t count,
                                   CUevent event) {
  const auto error = add_event(out, graph, after, count, event, CU_GRAPH_NODE_TYPE_EVENT_RECORD);
  if (!error) keep(*out, CU_GRAPH_NODE_TYPE_EVENT_RECORD, &CUgraphNodeParams::eventRecord, {event});
  return error;
}
CUresult cuGraphAddEventWaitNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* after, size_t count,
                                 CUevent event) {
  const auto error = add_event(out, graph, after, count, event, CU_GRAPH_NODE_TYPE_WAIT_EVENT);
  if (!error) keep(*out, CU_GRAPH_NODE_TYPE_WAIT_EVENT, &CUgraphNodeParams::eventWait, {event});
  return error;
}
CUresult cuGraphEventRecordNodeGetEvent(CUgraphNode node, CUevent* out) {
  CUDA_EVENT_RECORD_NODE_PARAMS p{};
  const auto error = tell(node, CU_GRAPH_NODE_TYPE_EVENT_RECORD, &CUgraphNodeParams::eventRecord, &p);
  if (!error) *out = p.event;
  return error;
}
CUresult cuGraphEventWaitNodeGetEvent(CUgraphNode node, CUevent* out) {
  CUDA_EVENT_WAIT_NODE_PARAMS p{};
  const auto error = tell(node, CU_GRAPH_NODE_TYPE_WAIT_EVENT, &CUgraphNodeParams::eventWait, &p);
  if (!error) *out = p.event;
  return error;
}
CUresult cuGraphAddMemAllocNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* after, size_t count,
                                CUDA_MEM_ALLOC_NODE_PARAMS* p) {
  const auto error = add("graph_add_allocation", out, graph, after, count, p->bytesize, word(&p->dptr));
  if (!error) {
    CUDA_MEM_ALLOC_NODE_PARAMS_v2 kept{};
    std::memcpy(&kept, p, std::min(sizeof kept, sizeof *p));
    keep(*out, CU_GRAPH_NODE_TYPE_MEM_ALLOC, &CUgraphNodeParams::alloc, kept);
  }
  return error;
}
CUresult cuGraphMemAllocNodeGetParams(CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS* out) {
  CUDA_MEM_ALLOC_NODE_PARAMS_v2 kept{};
  const auto error = tell(node, CU_GRAPH_NODE_TYPE_MEM_ALLOC, &CUgraphNodeParams::alloc, &kept);
  if (!error) std::memcpy(out, &kept, std::min(sizeof kept, sizeof *out));
  return error;
}
CUresult cuGraphAddMemFreeNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* after, size_t count,
                               CUdeviceptr address) {
  const auto error = add("graph_add_free", out, graph, after, count, address);
  if (!error) keep(*out, CU_GRAPH_NODE_TYPE_MEM_FREE, &CUgraphNodeParams::free, {address});
  return error;
}
CUresult cuGraphMemFreeNodeGetParams(CUgraphNode node, CUdeviceptr* out) {
  CUDA_MEM_FREE_NODE_PARAMS p{};
  const auto error = tell(node, CU_GRAPH_NODE_TYPE_MEM_FREE, &CUgraphNodeParams::free, &p);
  if (!error) *out = p.dptr;
  return error;
}
CUresult cuGraphKernelNodeGetParams(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS* out) {
  CUDA_KERNEL_NODE_PARAMS_v3 kept{};
  const auto error = tell(node, CU_GRAPH_NODE_TYPE_KERNEL, &CUgraphNodeParams::kernel, &kept);
  if (!error) std::memcpy(out, &kept, sizeof *out);
  return error;
}
CUresult cuGraphMemsetNodeGetParams(CUgraphNode node, CUDA_MEMSET_NODE_PARAMS* out) {
  CUDA_MEMSET_NODE_PARAMS_v2 kept{};
  const auto error = tell(node, CU_GRAPH_NODE_TYPE_MEMSET, &CUgraphNodeParams::memset, &kept);
  if (!error) std::memcpy(out, &kept, sizeof *out);
  return error;
}
CUresult cuGraphMemcpyNodeGetParams(CUgraphNode node, CUDA_MEMCPY3D* out) {
  CUDA_MEMCPY_NODE_PARAMS kept{};
  const auto error = tell(node, CU_GRAPH_NODE_TYPE_MEMCPY, &CUgraphNodeParams::memcpy, &kept);
  if (!error) *out = kept.copyParams;
  return error;
}
CUresult cuGraphHostNodeGetParams(CUgraphNode node, CUDA_HOST_NODE_PARAMS* out) {
  CUDA_HOST_NODE_PARAMS_v2 kept{};
  const auto error = tell(node, CU_GRAPH_NODE_TYPE_HOST, &CUgraphNodeParams::host, &kept);
  if (!error) std::memcpy(out, &kept, sizeof *out);
  return error;
}
CUresult cuGraphAddNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* after,
                        const CUgraphEdgeData*, size_t count, CUgraphNodeParams* p) {
  switch (p->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
      return cuGraphAddKernelNode(out, graph, after, count,
                                  reinterpret_cast<CUDA_KERNEL_NODE_PARAMS*>(&p->kernel));
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      return cuGraphAddMemcpyNode(out, graph, after, count, &p->memcpy.copyParams, p->memcpy.copyCtx);
    case CU_GRAPH_NODE_TYPE_MEMSET:
      return cuGraphAddMemsetNode(out, graph, after, count,
                                  reinterpret_cast<CUDA_MEMSET_NODE_PARAMS*>(&p->memset), nullptr);
    case CU_GRAPH_NODE_TYPE_HOST:
      return cuGraphAddHostNode(out, graph, after, count,
                                reinterpret_cast<CUDA_HOST_NODE_PARAMS*>(&p->host));
    case CU_GRAPH_NODE_TYPE_GRAPH:
      return cuGraphAddChildGraphNode(out, graph, after, count, p->graph.graph);
    case CU_GRAPH_NODE_TYPE_EMPTY: return cuGraphAddEmptyNode(out, graph, after, count);
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
      return cuGraphAddEventWaitNode(out, graph, after, count, p->eventWait.event);
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
      return cuGraphAddEventRecordNode(out, graph, after, count, p->eventRecord.event);
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC: {
      const auto error = add("graph_add_allocation", out, graph, after, count, p->alloc.bytesize,
                             word(&p->alloc.dptr));
      if (!error) keep(*out, CU_GRAPH_NODE_TYPE_MEM_ALLOC, &CUgraphNodeParams::alloc, p->alloc);
      return error;
    }
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
      return cuGraphAddMemFreeNode(out, graph, after, count, p->free.dptr);
    case CU_GRAPH_NODE_TYPE_CONDITIONAL:
      return result(call("missing", {word("cuGraphAddNode of a conditional node")}));
    default: return result(call("missing", {word("cuGraphAddNode of this type")}));
  }
}

// --- edges
CUresult cuGraphGetEdges(CUgraph graph, CUgraphNode* from, CUgraphNode* to, CUgraphEdgeData* edges, size_t* count) {
  const size_t room = *count;
  if (const int code = call("graph_edges", {word(graph), word(from), word(to), word(count)})) return result(code);
  if (edges && from) std::memset(edges, 0, std::min(room, *count) * sizeof *edges);
  return CUDA_SUCCESS;
}
CUresult cuGraphNodeGetDependencies(CUgraphNode node, CUgraphNode* out, CUgraphEdgeData* edges, size_t* count) {
  return neighbours(node, out, edges, count, 0);
}
CUresult cuGraphNodeGetDependentNodes(CUgraphNode node, CUgraphNode* out, CUgraphEdgeData* edges, size_t* count) {
  return neighbours(node, out, edges, count, 1);
}
CUresult cuGraphAddDependencies(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to,
                                const CUgraphEdgeData*, size_t count) {
  return result(call("graph_add_dependencies", {word(graph), word(from), word(to), count}));
}
CUresult cuGraphRemoveDependencies(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to,
                                   const CUgraphEdgeData*, size_t count) {
  return result(call("graph_remove_dependencies", {word(graph), word(from), word(to), count}));
}
CUresult cuGraphGetRootNodes(CUgraph graph, CUgraphNode* nodes, size_t* count) {
  return result(call("graph_nodes", {word(graph), word(nodes), word(count), 1}));
}
CUresult cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType* type) {
  return result(call("graph_kind_of", {word(node), word(type)}));
}
CUresult cuGraphDestroyNode(CUgraphNode node) { return result(call("graph_destroy_node", {word(node)})); }
CUresult cuGraphNodeFindInClone(CUgraphNode* out, CUgraphNode original, CUgraph clone) {
  return result(call("graph_find_in_clone", {word(out), word(original), word(clone)}));
}

// --- graphs
// The nodes of the copy have the parameters of those that they are copies of.
CUresult cuGraphClone(CUgraph* out, CUgraph graph) {
  if (const int code = call("graph_clone", {word(out), word(graph)})) return result(code);
  share_objects(word(graph), word(*out));
  size_t count = 0;
  if (const auto error = cuGraphGetNodes(graph, nullptr, &count)) return error;
  std::vector<CUgraphNode> nodes(count);
  if (const auto error = cuGraphGetNodes(graph, nodes.data(), &count)) return error;
  for (const auto node : nodes) {
    CUgraphNode copy = nullptr;
    if (const auto error = cuGraphNodeFindInClone(&copy, node, *out)) return error;
    std::lock_guard<std::mutex> lock(mutex);
    const auto found = given().find(node);
    if (found != given().end()) given()[copy] = found->second;
  }
  return CUDA_SUCCESS;
}
CUresult cuGraphInstantiateWithParams(CUgraphExec* out, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS* p) {
  const auto error = cuGraphInstantiate(out, graph, p->flags);
  p->hErrNode_out = nullptr;
  p->result_out = error ? CUDA_GRAPH_INSTANTIATE_ERROR : CUDA_GRAPH_INSTANTIATE_SUCCESS;
  return error;
}
CUresult cuGraphExecUpdate(CUgraphExec executable, CUgraph graph, CUgraphExecUpdateResultInfo* info) {
  const int code = call("graph_update", {word(executable), word(graph)});
  std::memset(info, 0, sizeof *info);
  info->result = code ? CU_GRAPH_EXEC_UPDATE_ERROR : CU_GRAPH_EXEC_UPDATE_SUCCESS;
  return result(code);
}
// Its nodes and edges, in Graphviz' words.
CUresult cuGraphDebugDotPrint(CUgraph graph, const char* path, unsigned) {
  size_t count = 0;
  if (const auto error = cuGraphGetEdges(graph, nullptr, nullptr, nullptr, &count)) return error;
  std::vector<CUgraphNode> from(count), to(count), nodes;
  cuGraphGetEdges(graph, from.data(), to.data(), nullptr, &count);
  size_t many = 0;
  cuGraphGetNodes(graph, nullptr, &many);
  nodes.resize(many);
  cuGraphGetNodes(graph, nodes.data(), &many);
  std::FILE* file = std::fopen(path, "w");
  if (!file) return CUDA_ERROR_OPERATING_SYSTEM;
  std::fputs("digraph dot {\n", file);
  for (const auto node : nodes) std::fprintf(file, "\"%p\";\n", static_cast<void*>(node));
  for (size_t i = 0; i < count; ++i)
    std::fprintf(file, "\"%p\" -> \"%p\";\n", static_cast<void*>(from[i]), static_cast<void*>(to[i]));
  std::fputs("}\n", file);
  std::fclose(file);
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetGraphMemAttribute(CUdevice, CUgraphMem_attribute attribute, void* out) {
  return result(call("graph_memory_attribute", {word(attribute), word(out)}));
}
CUresult cuDeviceSetGraphMemAttribute(CUdevice, CUgraphMem_attribute attribute, void*) {
  return result(call("graph_reset_memory_attribute", {word(attribute)}));
}
CUresult cuDeviceGraphMemTrim(CUdevice) { return CUDA_SUCCESS; }  // nothing is kept

// --- captures: the graph has its nodes when it ends
CUresult cuStreamGetCaptureInfo(CUstream queue, CUstreamCaptureStatus* status, cuuint64_t* number,
                                CUgraph* graph, const CUgraphNode** after, const CUgraphEdgeData** edges,
                                size_t* count) {
  uint64_t facts[2];  // whether it is under capture, the graph that is going to have it
  if (const int code = call("graph_capture_info", {word(queue), word(facts)})) return result(code);
  *status = facts[0] ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
  if (number) *number = facts[1];
  if (graph) *graph = reinterpret_cast<CUgraph>(facts[1]);
  if (after) *after = nullptr;
  if (edges) *edges = nullptr;
  if (count) *count = 0;
  return CUDA_SUCCESS;
}

// --- objects of the program that a graph keeps
CUresult cuUserObjectCreate(CUuserObject* out, void* data, CUhostFn destroy, unsigned references, unsigned) {
  if (!references || !destroy) return CUDA_ERROR_INVALID_VALUE;
  *out = reinterpret_cast<CUuserObject>(new Object{destroy, data, references});
  return CUDA_SUCCESS;
}
CUresult cuUserObjectRetain(CUuserObject object, unsigned count) {
  reinterpret_cast<Object*>(object)->references += count;
  return CUDA_SUCCESS;
}
CUresult cuUserObjectRelease(CUuserObject object, unsigned count) {
  release(reinterpret_cast<Object*>(object), count);
  return CUDA_SUCCESS;
}
CUresult cuGraphRetainUserObject(CUgraph graph, CUuserObject handle, unsigned count, unsigned flags) {
  auto* object = reinterpret_cast<Object*>(handle);
  if (!(flags & CU_GRAPH_USER_OBJECT_MOVE)) object->references += count;
  std::lock_guard<std::mutex> lock(mutex);
  owned()[word(graph)].push_back({object, count});
  return CUDA_SUCCESS;
}
CUresult cuGraphReleaseUserObject(CUgraph graph, CUuserObject handle, unsigned count) {
  auto* object = reinterpret_cast<Object*>(handle);
  unsigned left = count;
  {
    std::lock_guard<std::mutex> lock(mutex);
    auto& all = owned()[word(graph)];
    for (auto& entry : all)
      if (entry.first == object) {
        const unsigned now = std::min(entry.second, left);
        entry.second -= now, left -= now;
      }
    all.erase(std::remove_if(all.begin(), all.end(), [](const auto& entry) { return !entry.second; }),
              all.end());
  }
  if (left) return CUDA_ERROR_INVALID_VALUE;
  release(object, count);
  return CUDA_SUCCESS;
}

}  // extern "C"

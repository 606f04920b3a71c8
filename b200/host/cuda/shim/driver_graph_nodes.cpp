// Nodes of the driver's CUDA graphs, of every kind that is modelled, and their parameters, which are
// kept here as they were given.
#include <algorithm>
#include <map>
#include <mutex>

#include "driver_graphs.h"
#include "driver_result.h"
#include "graph_words.h"

using namespace b200;

namespace {

std::mutex mutex;

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

template <typename... Words>
CUresult add(const char* kind, CUgraphNode* out, CUgraph graph, const CUgraphNode* after, size_t count,
             Words... words) {
  return result(call(kind, {word(out), word(graph), word(after), count, words...}));
}

CUresult add_event(CUgraphNode* out, CUgraph graph, const CUgraphNode* after, size_t count, CUevent event,
                   CUgraphNodeType type) {
  return add("graph_add_event", out, graph, after, count, word(type), word(event));
}

}  // namespace

void b200::copy_parameters(CUgraphNode from, CUgraphNode to) {
  std::lock_guard<std::mutex> lock(mutex);
  const auto found = given().find(from);
  if (found != given().end()) given()[to] = found->second;
}

extern "C" {

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

}  // extern "C"

// Nodes of the driver's CUDA graphs, of every kind that is modelled, and their parameters. Those of
// copies and allocations are kept here as they were given, which says more than the words.
#include <algorithm>
#include <map>
#include <mutex>

#include "driver.h"
#include "driver_graphs.h"
#include "graph_words.h"

using namespace b200;
using namespace b200::driver;

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

// Parameters of a node as words, which graph_words.h has. type: what the caller takes it for.
struct Given {
  uint64_t words[9] = {};
};
CUresult parameters_of(CUgraphNode node, CUgraphNodeType type, Given& out) {
  return ask("graph_parameters", node, type, out.words);
}

CUresult add_event(CUgraphNode* out, CUgraph graph, const CUgraphNode* after, size_t count, CUevent event,
                   CUgraphNodeType type) {
  return ask("graph_add", out, graph, after, count, type, event);
}
CUresult event_of(CUgraphNode node, CUgraphNodeType type, CUevent* out) {
  Given of;
  const auto error = parameters_of(node, type, of);
  if (!error) *out = reinterpret_cast<CUevent>(of.words[0]);
  return error;
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
  return ask("graph_add", out, graph, after, count, CU_GRAPH_NODE_TYPE_KERNEL, kernel_of(*p), &launch);
}
CUresult cuGraphAddMemcpyNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* after, size_t count,
                              const CUDA_MEMCPY3D* p, CUcontext context) {
  const auto copy = copy_of(*p);
  const auto error = ask("graph_add", out, graph, after, count, CU_GRAPH_NODE_TYPE_MEMCPY, &copy);
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
  return ask("graph_add", out, graph, after, count, CU_GRAPH_NODE_TYPE_MEMSET, &fill);
}
CUresult cuGraphAddHostNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* after, size_t count,
                            const CUDA_HOST_NODE_PARAMS* p) {
  return ask("graph_add", out, graph, after, count, CU_GRAPH_NODE_TYPE_HOST, p->fn, p->userData);
}
CUresult cuGraphAddEmptyNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* after, size_t count) {
  return ask("graph_add_empty", out, graph, after, count);
}
CUresult cuGraphAddChildGraphNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* after, size_t count,
                                  CUgraph child) {
  if (const auto error = ask("graph_add_child", out, graph, after, count, child)) return error;
  CUgraph own = nullptr;
  if (const auto error = cuGraphChildGraphNodeGetGraph(*out, &own)) return error;
  return complete_copy(child, own);
}
CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode node, CUgraph* out) {
  return ask("graph_child_of", node, out);
}
CUresult cuGraphAddEventRecordNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* after, size_t count,
                                   CUevent event) {
  return add_event(out, graph, after, count, event, CU_GRAPH_NODE_TYPE_EVENT_RECORD);
}
CUresult cuGraphAddEventWaitNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* after, size_t count,
                                   CUevent event) {
  return add_event(out, graph, after, count, event, CU_GRAPH_NODE_TYPE_WAIT_EVENT);
}
CUresult cuGraphEventRecordNodeGetEvent(CUgraphNode node, CUevent* out) {
  return event_of(node, CU_GRAPH_NODE_TYPE_EVENT_RECORD, out);
}
CUresult cuGraphEventWaitNodeGetEvent(CUgraphNode node, CUevent* out) {
  return event_of(node, CU_GRAPH_NODE_TYPE_WAIT_EVENT, out);
}
CUresult cuGraphAddMemAllocNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* after, size_t count,
                                CUDA_MEM_ALLOC_NODE_PARAMS* p) {
  const auto error = ask("graph_add", out, graph, after, count, CU_GRAPH_NODE_TYPE_MEM_ALLOC,
                         p->bytesize, &p->dptr);
  if (!error) {
    CUDA_MEM_ALLOC_NODE_PARAMS_v2 kept{};
    std::memcpy(&kept, p, std::min(sizeof kept, sizeof *p));
    keep(*out, CU_GRAPH_NODE_TYPE_MEM_ALLOC, &CUgraphNodeParams::alloc, kept);
  }
  return error;
}
CUresult cuGraphMemAllocNodeGetParams(CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS* out) {
  CUDA_MEM_ALLOC_NODE_PARAMS_v2 kept{};
  if (tell(node, CU_GRAPH_NODE_TYPE_MEM_ALLOC, &CUgraphNodeParams::alloc, &kept)) {  // captured
    Given of;
    if (const auto error = parameters_of(node, CU_GRAPH_NODE_TYPE_MEM_ALLOC, of)) return error;
    kept.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    kept.poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    kept.dptr = of.words[0], kept.bytesize = of.words[1];
  }
  std::memcpy(out, &kept, std::min(sizeof kept, sizeof *out));
  return CUDA_SUCCESS;
}
CUresult cuGraphAddMemFreeNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* after, size_t count,
                               CUdeviceptr address) {
  return ask("graph_add", out, graph, after, count, CU_GRAPH_NODE_TYPE_MEM_FREE, address);
}
CUresult cuGraphMemFreeNodeGetParams(CUgraphNode node, CUdeviceptr* out) {
  Given of;
  const auto error = parameters_of(node, CU_GRAPH_NODE_TYPE_MEM_FREE, of);
  if (!error) *out = of.words[0];
  return error;
}
CUresult cuGraphKernelNodeGetParams(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS* out) {
  Given of;
  if (const auto error = parameters_of(node, CU_GRAPH_NODE_TYPE_KERNEL, of)) return error;
  const auto& w = of.words;
  std::memset(out, 0, sizeof *out);
  out->func = reinterpret_cast<CUfunction>(w[0]);
  out->kern = reinterpret_cast<CUkernel>(w[0]);
  out->gridDimX = w[1], out->gridDimY = w[2], out->gridDimZ = w[3];
  out->blockDimX = w[4], out->blockDimY = w[5], out->blockDimZ = w[6];
  out->sharedMemBytes = w[7];
  out->kernelParams = reinterpret_cast<void**>(w[8]);
  return CUDA_SUCCESS;
}
CUresult cuGraphMemsetNodeGetParams(CUgraphNode node, CUDA_MEMSET_NODE_PARAMS* out) {
  Given of;
  if (const auto error = parameters_of(node, CU_GRAPH_NODE_TYPE_MEMSET, of)) return error;
  const auto& w = of.words;
  std::memset(out, 0, sizeof *out);
  out->dst = w[0], out->value = w[1], out->elementSize = w[2];
  out->width = w[3], out->height = w[4], out->pitch = w[5];
  return CUDA_SUCCESS;
}
CUresult cuGraphMemcpyNodeGetParams(CUgraphNode node, CUDA_MEMCPY3D* out) {
  CUDA_MEMCPY_NODE_PARAMS kept{};
  if (tell(node, CU_GRAPH_NODE_TYPE_MEMCPY, &CUgraphNodeParams::memcpy, &kept)) {  // captured
    Given of;
    if (const auto error = parameters_of(node, CU_GRAPH_NODE_TYPE_MEMCPY, of)) return error;
    auto& p = kept.copyParams;
    p.dstMemoryType = p.srcMemoryType = CU_MEMORYTYPE_UNIFIED;
    p.dstDevice = of.words[0], p.srcDevice = of.words[1];
    p.WidthInBytes = of.words[2], p.Height = of.words[3], p.Depth = of.words[4];
    p.dstPitch = of.words[5], p.srcPitch = of.words[7];
  }
  *out = kept.copyParams;
  return CUDA_SUCCESS;
}
CUresult cuGraphHostNodeGetParams(CUgraphNode node, CUDA_HOST_NODE_PARAMS* out) {
  Given of;
  if (const auto error = parameters_of(node, CU_GRAPH_NODE_TYPE_HOST, of)) return error;
  std::memset(out, 0, sizeof *out);
  out->fn = reinterpret_cast<CUhostFn>(of.words[0]);
  out->userData = reinterpret_cast<void*>(of.words[1]);
  return CUDA_SUCCESS;
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
      const auto error = ask("graph_add", out, graph, after, count, CU_GRAPH_NODE_TYPE_MEM_ALLOC,
                             p->alloc.bytesize, &p->alloc.dptr);
      if (!error) keep(*out, CU_GRAPH_NODE_TYPE_MEM_ALLOC, &CUgraphNodeParams::alloc, p->alloc);
      return error;
    }
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
      return cuGraphAddMemFreeNode(out, graph, after, count, p->free.dptr);
    case CU_GRAPH_NODE_TYPE_CONDITIONAL:
      return ask("missing", "cuGraphAddNode of a conditional node");
    default: return ask("missing", "cuGraphAddNode of this type");
  }
}

}  // extern "C"

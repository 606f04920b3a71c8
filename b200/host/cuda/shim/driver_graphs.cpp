// CUDA graphs of the driver over a B200 in software: graphs, the edges of their nodes, and captures.
//
// It is compiled, with driver_graph_nodes.cpp and driver_graph_objects.cpp, for programs that call a
// function of the three (../stand_in.py). What they do is on the Python side (../graphs.py).
#include <algorithm>
#include <cstdio>
#include <vector>

#include "driver.h"
#include "driver_graphs.h"

using namespace b200;
using namespace b200::driver;

namespace {

// Handles of nodes, of which there may be more than there is room for. what: 0 those before a node, 1
// those after it.
CUresult neighbours(CUgraphNode node, CUgraphNode* out, CUgraphEdgeData* edges, size_t* count, int what) {
  const size_t room = *count;
  if (const int code = call("graph_neighbours", node, out, count, what))
    return result(code);
  if (edges && out) std::memset(edges, 0, std::min(room, *count) * sizeof *edges);
  return CUDA_SUCCESS;
}

std::vector<CUgraphNode> nodes_of(CUgraph graph) {
  size_t count = 0;
  if (cuGraphGetNodes(graph, nullptr, &count)) return {};
  std::vector<CUgraphNode> nodes(count);
  if (cuGraphGetNodes(graph, nodes.data(), &count)) return {};
  return nodes;
}
bool is_of_graph(CUgraphNode node) {
  CUgraphNodeType type;
  return cuGraphNodeGetType(node, &type) == CUDA_SUCCESS && type == CU_GRAPH_NODE_TYPE_GRAPH;
}
CUgraph child_of(CUgraphNode node) {
  CUgraph child = nullptr;
  cuGraphChildGraphNodeGetGraph(node, &child);
  return child;
}
void add_with_children(CUgraph graph, std::vector<uint64_t>& all) {
  all.push_back(word(graph));
  for (const auto node : nodes_of(graph))
    if (is_of_graph(node)) add_with_children(child_of(node), all);
}
void release_all(const std::vector<uint64_t>& graphs) {
  for (const auto graph : graphs) release_objects(graph);
}

}  // namespace

std::vector<uint64_t> b200::with_children(CUgraph graph) {
  std::vector<uint64_t> all;
  add_with_children(graph, all);
  return all;
}
CUresult b200::complete_copy(CUgraph from, CUgraph to) {
  share_objects(word(from), word(to));
  for (const auto node : nodes_of(from)) {
    CUgraphNode copy = nullptr;
    if (const auto error = cuGraphNodeFindInClone(&copy, node, to)) return error;
    copy_parameters(node, copy);
    if (!is_of_graph(node)) continue;
    if (const auto error = complete_copy(child_of(node), child_of(copy))) return error;
  }
  return CUDA_SUCCESS;
}

extern "C" {

// --- graphs
CUresult cuGraphCreate(CUgraph* graph, unsigned) { return ask("graph_create", graph); }
CUresult cuGraphDestroy(CUgraph graph) {
  const auto all = with_children(graph);
  const auto error = ask("graph_destroy", graph);
  if (!error) release_all(all);
  return error;
}
CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode* nodes, size_t* count) {
  return ask("graph_nodes", graph, nodes, count, 0);
}
CUresult cuGraphInstantiate(CUgraphExec* out, CUgraph graph, unsigned long long flags) {
  const auto error = ask("graph_instantiate", out, graph, flags);
  if (!error) replace_objects(with_children(graph), word(*out));
  return error;
}
CUresult cuGraphExecDestroy(CUgraphExec graph) {
  const auto error = ask("graph_destroy_executable", graph);
  if (!error) release_objects(word(graph));
  return error;
}
CUresult cuGraphLaunch(CUgraphExec graph, CUstream queue) {
  return ask("graph_launch", graph, queue);
}
CUresult cuGraphUpload(CUgraphExec, CUstream) { return CUDA_SUCCESS; }
CUresult cuGraphClone(CUgraph* out, CUgraph graph) {
  if (const int code = call("graph_clone", out, graph)) return result(code);
  return complete_copy(graph, *out);
}
CUresult cuGraphInstantiateWithParams(CUgraphExec* out, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS* p) {
  const auto error = cuGraphInstantiate(out, graph, p->flags);
  p->hErrNode_out = nullptr;
  p->result_out = error ? CUDA_GRAPH_INSTANTIATE_ERROR : CUDA_GRAPH_INSTANTIATE_SUCCESS;
  return error;
}
CUresult cuGraphExecUpdate(CUgraphExec executable, CUgraph graph, CUgraphExecUpdateResultInfo* info) {
  uint64_t changed = CU_GRAPH_EXEC_UPDATE_ERROR;
  const int code = call("graph_update", executable, graph, &changed);
  std::memset(info, 0, sizeof *info);
  info->result = code ? static_cast<CUgraphExecUpdateResult>(changed) : CU_GRAPH_EXEC_UPDATE_SUCCESS;
  if (!code) replace_objects(with_children(graph), word(executable));
  return result(code);
}
// Its nodes and edges, in Graphviz' words.
CUresult cuGraphDebugDotPrint(CUgraph graph, const char* path, unsigned) {
  size_t count = 0;
  if (const auto error = cuGraphGetEdges(graph, nullptr, nullptr, nullptr, &count)) return error;
  std::vector<CUgraphNode> from(count), to(count);
  cuGraphGetEdges(graph, from.data(), to.data(), nullptr, &count);
  std::FILE* file = std::fopen(path, "w");
  if (!file) return CUDA_ERROR_OPERATING_SYSTEM;
  std::fputs("digraph dot {\n", file);
  for (const auto node : nodes_of(graph)) std::fprintf(file, "\"%p\";\n", static_cast<void*>(node));
  for (size_t i = 0; i < count; ++i)
    std::fprintf(file, "\"%p\" -> \"%p\";\n", static_cast<void*>(from[i]), static_cast<void*>(to[i]));
  std::fputs("}\n", file);
  std::fclose(file);
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetGraphMemAttribute(CUdevice, CUgraphMem_attribute attribute, void* out) {
  return ask("graphmemory_attribute", attribute, out);
}
CUresult cuDeviceSetGraphMemAttribute(CUdevice, CUgraphMem_attribute attribute, void*) {
  return ask("graphmemory_reset", attribute);
}
CUresult cuDeviceGraphMemTrim(CUdevice) { return ask("graphmemory_trim"); }

// --- edges
CUresult cuGraphGetEdges(CUgraph graph, CUgraphNode* from, CUgraphNode* to, CUgraphEdgeData* edges, size_t* count) {
  const size_t room = *count;
  if (const int code = call("graph_edges", graph, from, to, count)) return result(code);
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
  return ask("graph_add_dependencies", graph, from, to, count);
}
CUresult cuGraphRemoveDependencies(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to,
                                   const CUgraphEdgeData*, size_t count) {
  return ask("graph_remove_dependencies", graph, from, to, count);
}
CUresult cuGraphGetRootNodes(CUgraph graph, CUgraphNode* nodes, size_t* count) {
  return ask("graph_nodes", graph, nodes, count, 1);
}
CUresult cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType* type) {
  return ask("graph_kind_of", node, type);
}
CUresult cuGraphDestroyNode(CUgraphNode node) {
  const auto all = is_of_graph(node) ? with_children(child_of(node)) : std::vector<uint64_t>{};
  const auto error = ask("graph_destroy_node", node);
  if (!error) release_all(all);
  return error;
}
CUresult cuGraphNodeFindInClone(CUgraphNode* out, CUgraphNode original, CUgraph clone) {
  return ask("graph_find_in_clone", out, original, clone);
}

// --- captures
CUresult cuStreamBeginCapture(CUstream queue, CUstreamCaptureMode) {
  return ask("graph_begin_capture", queue);
}
CUresult cuStreamEndCapture(CUstream, CUgraph* graph) { return ask("graph_end_capture", graph); }
CUresult cuStreamGetCaptureInfo(CUstream queue, CUstreamCaptureStatus* status, cuuint64_t* number,
                                CUgraph* graph, const CUgraphNode** after, const CUgraphEdgeData** edges,
                                size_t* count) {
  uint64_t facts[4];  // whether it is under capture, its graph, nodes that the next one comes after
  if (const int code = call("graph_capture_info", queue, facts)) return result(code);
  *status = facts[0] ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
  if (number) *number = facts[1];
  if (graph) *graph = reinterpret_cast<CUgraph>(facts[1]);
  if (after) *after = reinterpret_cast<const CUgraphNode*>(facts[2]);
  if (edges) {
    static thread_local std::vector<CUgraphEdgeData> plain;  // as long as there are nodes, all zero
    plain.assign(facts[3] + 1, CUgraphEdgeData{});
    *edges = plain.data();
  }
  if (count) *count = facts[3];
  return CUDA_SUCCESS;
}
CUresult cuStreamUpdateCaptureDependencies(CUstream queue, CUgraphNode* nodes, const CUgraphEdgeData*,
                                           size_t count, unsigned flags) {
  const uint64_t is_set = flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES;
  return ask("graph_capture_after", queue, nodes, count, is_set);
}

}  // extern "C"

// What the files of the driver's CUDA graphs ask of one another.
#pragma once

#include <cuda.h>

#include <vector>

#include "backend.h"

namespace b200 {

// driver_graph_nodes.cpp: a node that is a copy of another has its parameters.
void copy_parameters(CUgraphNode from, CUgraphNode to);

// driver_graph_objects.cpp. A graph that is copied, or made executable, keeps what the first one
// keeps, until it is destroyed. Graphs are given as words.
void share_objects(uint64_t from, uint64_t to);
void release_objects(uint64_t graph);
// What an executable graph keeps is from now on what these graphs keep.
void replace_objects(const std::vector<uint64_t>& from, uint64_t to);

// driver_graphs.cpp. A graph and those that its nodes own, and theirs.
std::vector<uint64_t> with_children(CUgraph graph);
// A graph has become a copy of another: its nodes have the parameters, it keeps the objects.
CUresult complete_copy(CUgraph from, CUgraph to);

}  // namespace b200

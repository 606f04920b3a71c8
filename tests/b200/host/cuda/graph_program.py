"""Graphs in C++, a part of the program of test_programs.py: test_graphs.py looks at what they do."""

SOURCE = r"""
__global__ void add(int* x, int n) { x[threadIdx.x] += n; }
__global__ void twice(int* x) { x[threadIdx.x] *= 2; }

cudaKernelNodeParams of_kernel(void* kernel, void** arguments) {
  cudaKernelNodeParams p{};
  p.func = kernel;
  p.gridDim = dim3(1);
  p.blockDim = dim3(4);
  p.kernelParams = arguments;
  return p;
}
void count_calls(void* calls) { ++*static_cast<int*>(calls); }

// b = 2 (fill + 3), twice; the fill and the doubling are made in the wrong order
TEST(by_hand, {
  int* x = nullptr;
  cudaMalloc(&x, 16);
  cudaGraph_t graph;
  cudaGraphCreate(&graph, 0);
  cudaGraphNode_t doubles, fills, adds, copies, calls;
  void* one[] = {&x};
  auto p = of_kernel((void*)twice, one);
  cudaGraphAddKernelNode(&doubles, graph, nullptr, 0, &p);
  cudaMemsetParams m{};
  m.dst = x, m.value = 0x01010101, m.elementSize = 4, m.width = 4, m.height = 1;
  cudaGraphAddMemsetNode(&fills, graph, nullptr, 0, &m);
  int n = 3, host_calls = 0;
  void* two[] = {&x, &n};
  p = of_kernel((void*)add, two);
  cudaGraphAddKernelNode(&adds, graph, &fills, 1, &p);
  n = 100;  // the node has copied it
  cudaGraphAddDependencies(graph, &adds, &doubles, nullptr, 1);
  cudaMemcpy3DParms c{};
  c.srcPtr = make_cudaPitchedPtr(x, 8, 8, 2), c.dstPtr = make_cudaPitchedPtr((void*)b, 8, 8, 2);
  c.extent = make_cudaExtent(8, 2, 1);
  cudaGraphAddMemcpyNode(&copies, graph, &doubles, 1, &c);
  cudaHostNodeParams h{count_calls, &host_calls};
  cudaGraphAddHostNode(&calls, graph, &copies, 1, &h);
  size_t count = 0, roots = 0;
  cudaGraphGetNodes(graph, nullptr, &count);
  cudaGraphGetRootNodes(graph, nullptr, &roots);
  cudaGraphExec_t executable;
  cudaGraphInstantiate(&executable, graph, 0);
  for (int i = 0; i < 2; ++i) cudaGraphLaunch(executable, nullptr);
  int* out = (int*)a;
  out[0] = count, out[1] = roots, out[2] = host_calls;
  // other parameters for the executable graph, and a child
  void* changed[] = {&x, &n};
  p = of_kernel((void*)add, changed);
  cudaGraphExecKernelNodeSetParams(executable, adds, &p);
  cudaGraphLaunch(executable, nullptr);
  out[3] = ((int*)b)[0];
  cudaGraph_t parent;
  cudaGraphCreate(&parent, 0);
  cudaGraphNode_t child;
  cudaGraphAddChildGraphNode(&child, parent, nullptr, 0, graph);
  cudaGraphInstantiate(&executable, parent, 0);
  cudaGraphLaunch(executable, nullptr);
})

TEST(captured, {
  cudaStream_t queue, other;
  cudaStreamCreate(&queue);
  cudaStreamCreate(&other);
  cudaEvent_t fork, join;
  cudaEventCreate(&fork);
  cudaEventCreate(&join);
  cudaStreamBeginCapture(queue, cudaStreamCaptureModeGlobal);
  cudaMemsetAsync((void*)a, 0, 16, queue);
  cudaEventRecord(fork, queue);
  cudaStreamWaitEvent(other, fork, 0);
  add<<<1, 4, 0, other>>>((int*)a, 5);
  cudaEventRecord(join, other);
  cudaStreamWaitEvent(queue, join, 0);
  twice<<<1, 4, 0, queue>>>((int*)a);
  cudaMemcpyAsync((void*)b, (void*)a, 16, cudaMemcpyDeviceToHost, queue);
  cudaGraph_t graph;
  cudaStreamEndCapture(queue, &graph);
  if (((int*)a)[0] != 7) throw std::runtime_error("a capture carried something out");
  cudaGraphExec_t executable;
  cudaGraphInstantiate(&executable, graph, 0);
  cudaGraphLaunch(executable, queue);
  cudaStreamSynchronize(queue);
})

TEST(memory_under_capture, {
  cudaStream_t queue;
  cudaStreamCreate(&queue);
  void* place;
  cudaMallocAsync(&place, 16, queue);
  cudaFreeAsync(place, queue);
  *(int*)a = 1;
  cudaStreamBeginCapture(queue, cudaStreamCaptureModeGlobal);
  cudaMallocAsync(&place, 16, queue);
  cudaMemsetAsync(place, 5, 16, queue);
  cudaMemcpyAsync((void*)b, place, 16, cudaMemcpyDefault, queue);
  cudaFreeAsync(place, queue);
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  cudaStreamEndCapture(queue, &graph);
  cudaGraphInstantiate(&executable, graph, 0);
  for (int i = 0; i < 2; ++i) cudaGraphLaunch(executable, queue);
})

TEST(in_a_circle, {
  cudaGraph_t graph;
  cudaGraphCreate(&graph, 0);
  cudaGraphNode_t nodes[2];
  cudaGraphAddEmptyNode(&nodes[0], graph, nullptr, 0);
  cudaGraphAddEmptyNode(&nodes[1], graph, nodes, 1);
  cudaGraphAddDependencies(graph, &nodes[1], &nodes[0], nullptr, 1);
  cudaGraphExec_t executable;
  *(int*)a = cudaGraphInstantiate(&executable, graph, 0);
  *(int*)b = cudaGraphLaunch((cudaGraphExec_t)0x10, nullptr);
})

TEST(by_the_driver, {
  CUmodule module;
  CUfunction function;
  cuModuleLoadData(&module, ptx);
  cuModuleGetFunction(&function, module, "add_one");
  CUgraph graph;
  cuGraphCreate(&graph, 0);
  CUDA_KERNEL_NODE_PARAMS p{};
  unsigned value = 41;
  void* arguments[] = {&a, &value};
  p.func = function, p.gridDimX = p.gridDimY = p.gridDimZ = 1;
  p.blockDimX = p.blockDimY = p.blockDimZ = 1, p.kernelParams = arguments;
  CUgraphNode adds, copies;
  cuGraphAddKernelNode(&adds, graph, nullptr, 0, &p);
  CUDA_MEMCPY3D c{};
  c.srcMemoryType = CU_MEMORYTYPE_DEVICE, c.srcDevice = a;
  c.dstMemoryType = CU_MEMORYTYPE_HOST, c.dstHost = (void*)b;
  c.WidthInBytes = 4, c.Height = c.Depth = 1;
  cuGraphAddMemcpyNode(&copies, graph, &adds, 1, &c, nullptr);
  CUgraphExec executable;
  cuGraphInstantiate(&executable, graph, 0);
  cuGraphLaunch(executable, nullptr);
})
"""

"""A CUDA program for the tests of what the driver gives a compiled program: argv[1] is the part."""

SOURCE = r"""
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda.h>
#include <cuda_runtime.h>
#include <vector>

#define CHECK(call) if (int e = (int)(call)) { printf("%s: %d\n", #call, e); exit(9); }

__global__ void twice(int* x, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] *= 2;
}
__global__ void make(int** out) {  // each thread a block of its own, a list of 4
  int* mine = new int[4];
  for (int i = 0; i < 4; ++i) mine[i] = 10 * threadIdx.x + i;
  out[threadIdx.x] = mine;
}
__global__ void take(int** from, int* out) {
  int sum = 0;
  for (int i = 0; i < 4; ++i) sum += from[threadIdx.x][i];
  out[threadIdx.x] = sum;
  delete[] from[threadIdx.x];
}

__global__ void tree(int* sums, int depth, int from) {  // two children a thread, to a depth of 3
  atomicAdd(&sums[depth], 100 * blockIdx.x + threadIdx.x + from);
  if (depth < 2) tree<<<2, 1>>>(sums, depth + 1, 10 * threadIdx.x);
}

// Two stripes of memory at addresses in a row, written by a kernel across their border.
void virtual_memory() {
  CUmemAllocationProp prop = {};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  size_t unit = 0;
  CHECK(cuMemGetAllocationGranularity(&unit, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  CUdeviceptr at = 0;
  CHECK(cuMemAddressReserve(&at, 2 * unit, 0, 0, 0));
  CUmemAccessDesc access = {};
  access.location = prop.location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  printf("nothing there: %d\n", cuMemSetAccess(at, unit, &access, 1));
  CUmemGenericAllocationHandle stripes[2];
  for (int i = 0; i < 2; ++i) {
    CHECK(cuMemCreate(&stripes[i], unit, &prop, 0));
    CHECK(cuMemMap(at + i * unit, unit, 0, stripes[i], 0));
    CHECK(cuMemRelease(stripes[i]));
    CHECK(cuMemSetAccess(at + i * unit, unit, &access, 1));
  }
  const int n = 64;
  std::vector<int> values(n, 21);
  const CUdeviceptr border = at + unit - n / 2 * sizeof(int);
  CHECK(cuMemcpyHtoD(border, values.data(), n * sizeof(int)));
  twice<<<2, 32>>>((int*)border, n);
  CHECK(cudaDeviceSynchronize());
  CHECK(cuMemcpyDtoH(values.data(), border, n * sizeof(int)));
  printf("across the border: %d %d\n", values[0], values[n - 1]);
  printf("a part: %d\n", cuMemUnmap(at, unit / 2));
  CHECK(cuMemUnmap(at, unit));
  printf("in use: %d\n", cuMemAddressFree(at, 2 * unit));
  CHECK(cuMemUnmap(at + unit, unit));
  CHECK(cuMemAddressFree(at, 2 * unit));
  printf("odd size: %d\n", cuMemCreate(&stripes[0], unit + 1, &prop, 0));
}

const char* kKernel = R"(.version 8.7
.target sm_100a
.address_size 64
.extern .func (.param .b32 r) seven();
.visible .entry k(.param .b64 out) {
  .reg .b64 %o; .reg .b32 %x;
  ld.param.b64 %o, [out];
  { .param .b32 q; call.uni (q), seven; ld.param.b32 %x, [q]; }
  st.global.b32 [%o], %x; ret;
})";
const char* kFunction = R"(.version 8.7
.target sm_100a
.address_size 64
.visible .func (.param .b32 r) seven() { .reg .b32 %x; mov.b32 %x, 7; st.param.b32 [r], %x; ret; })";

void link() {
  char log[64] = "not written";
  CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
  void* values[] = {log, (void*)sizeof log};
  CUlinkState state;
  CHECK(cuLinkCreate(2, options, values, &state));
  for (const char* text : {kKernel, kFunction})
    CHECK(cuLinkAddData(state, CU_JIT_INPUT_PTX, (void*)text, strlen(text) + 1, "", 0, 0, 0));
  void* image;
  size_t size;
  CHECK(cuLinkComplete(state, &image, &size));
  CUmodule module;
  CUfunction k;
  CHECK(cuModuleLoadData(&module, image));
  CHECK(cuLinkDestroy(state));
  CHECK(cuModuleGetFunction(&k, module, "k"));
  CUdeviceptr out;
  CHECK(cuMemAlloc(&out, 4));
  void* arguments[] = {&out};
  CHECK(cuLaunchKernel(k, 1, 1, 1, 1, 1, 1, 0, 0, arguments, 0));
  int value = 0;
  CHECK(cuMemcpyDtoH(&value, out, 4));
  CHECK(cuMemFree(out));
  printf("linked: %d, log '%s'\n", value, log);
}

// A graph that allocates, computes and frees, launched twice; and one made by capture.
void graph_memory() {
  const int n = 32;
  std::vector<int> host(n, 5), result(n);
  cudaGraph_t graph;
  cudaGraphNode_t made, filled, run, read, freed;
  CHECK(cudaGraphCreate(&graph, 0));
  cudaMemAllocNodeParams memory = {};
  memory.poolProps.allocType = cudaMemAllocationTypePinned;
  memory.poolProps.location.type = cudaMemLocationTypeDevice;
  memory.bytesize = n * sizeof(int);
  CHECK(cudaGraphAddMemAllocNode(&made, graph, nullptr, 0, &memory));
  printf("before: %d\n", cudaMemcpy(result.data(), memory.dptr, 4, cudaMemcpyDefault) == 0);
  CHECK(cudaGraphAddMemcpyNode1D(&filled, graph, &made, 1, memory.dptr, host.data(),
                                 n * sizeof(int), cudaMemcpyHostToDevice));
  int count = n;
  void* arguments[] = {&memory.dptr, &count};
  cudaKernelNodeParams kernel = {};
  kernel.func = (void*)twice;
  kernel.gridDim = dim3(1);
  kernel.blockDim = dim3(32);
  kernel.kernelParams = arguments;
  CHECK(cudaGraphAddKernelNode(&run, graph, &filled, 1, &kernel));
  CHECK(cudaGraphAddMemcpyNode1D(&read, graph, &run, 1, result.data(), memory.dptr,
                                 n * sizeof(int), cudaMemcpyDeviceToHost));
  CHECK(cudaGraphAddMemFreeNode(&freed, graph, &read, 1, memory.dptr));
  cudaGraphExec_t executable;
  CHECK(cudaGraphInstantiate(&executable, graph, 0));
  for (int i = 0; i < 2; ++i) {
    CHECK(cudaGraphLaunch(executable, 0));
    CHECK(cudaDeviceSynchronize());
    printf("launched: %d\n", result[n - 1]);
    result[n - 1] = 0;
  }
  cudaStream_t queue;
  CHECK(cudaStreamCreate(&queue));
  CHECK(cudaStreamBeginCapture(queue, cudaStreamCaptureModeGlobal));
  int* x;
  CHECK(cudaMallocAsync((void**)&x, n * sizeof(int), queue));
  CHECK(cudaMemsetAsync(x, 0, n * sizeof(int), queue));
  CHECK(cudaStreamEndCapture(queue, &graph));
  CHECK(cudaGraphInstantiate(&executable, graph, 0));
  CHECK(cudaGraphLaunch(executable, queue));
  CHECK(cudaStreamSynchronize(queue));
  size_t used = 0;
  CHECK(cudaDeviceGetGraphMemAttribute(0, cudaGraphMemAttrUsedMemCurrent, &used));
  printf("captured: %zu bytes; again: %d\n", used, cudaGraphLaunch(executable, queue) != 0);
}

void heap() {
  int **blocks, *out, sums[32];
  CHECK(cudaMalloc(&blocks, 32 * sizeof(int*)));
  CHECK(cudaMalloc(&out, sizeof sums));
  make<<<1, 32>>>(blocks);
  take<<<1, 32>>>(blocks, out);
  CHECK(cudaMemcpy(sums, out, sizeof sums, cudaMemcpyDeviceToHost));
  size_t limit;
  CHECK(cudaDeviceSetLimit(cudaLimitMallocHeapSize, 1 << 20));
  CHECK(cudaDeviceGetLimit(&limit, cudaLimitMallocHeapSize));
  printf("heap: %d %d, limit %zu\n", sums[0], sums[31], limit);
}

void child_grids() {
  int *sums, found[3];
  CHECK(cudaMalloc(&sums, sizeof found));
  CHECK(cudaMemset(sums, 0, sizeof found));
  tree<<<1, 2>>>(sums, 0, 0);
  CHECK(cudaMemcpy(found, sums, sizeof found, cudaMemcpyDeviceToHost));
  printf("children: %d %d %d\n", found[0], found[1], found[2]);
}

void entry_points() {
  using Version = CUresult (*)(int*);
  Version version;
  CUdriverProcAddressQueryResult said;
  void *unknown = &said, *refuses;
  CHECK(cuGetProcAddress("cuDriverGetVersion", (void**)&version, 13000, 0, &said));
  int number = 0;
  CHECK(version(&number));
  printf("version %d\n", number == CUDA_VERSION);
  const int code = cuGetProcAddress("cuNoSuchFunction", &unknown, 13000, 0, &said);
  printf("unknown: %d %d %p\n", code, (int)said, unknown);
  cudaDriverEntryPointQueryResult found;
  CHECK(cudaGetDriverEntryPointByVersion("cuMemAlloc", &refuses, 13000, 0, &found));
  printf("renamed: %d\n", refuses == (void*)&cuMemAlloc);
}

int main(int argc, char** argv) {
  const auto is = [&](const char* name) { return std::strcmp(argv[1], name) == 0; };
  CHECK(cuInit(0));
  if (is("virtual")) virtual_memory();
  if (is("link")) link();
  if (is("graph")) graph_memory();
  if (is("heap")) heap();
  if (is("children")) child_grids();
  if (is("entry")) entry_points();
}
"""

SAYS = {
    "virtual": [
        "nothing there: 1",
        "across the border: 42 42",
        "a part: 1",
        "in use: 1",
        "odd size: 1",
    ],
    "link": ["linked: 7, log ''"],
    "graph": ["before: 0", "launched: 10", "launched: 10", "captured: 128 bytes; again: 1"],
    "heap": ["heap: 6 1246, limit 1048576"],
    "children": ["children: 1 220 400"],
    "entry": ["version 1", "unknown: 500 1 (nil)", "renamed: 1"],
}

// What nvcc's host code calls before main: modules, kernels, variables; and launches with <<<>>>.
//
// Registration runs while the library is being loaded, where an exception would end the process:
// the Python side keeps the first error and raises it when the library is in place. A module is
// called by the address of its handle.
#include <cuda_runtime.h>

#include "backend.h"

using b200::try_call;

namespace {
struct Configuration {
  dim3 grid, block;
  size_t dynamic_smem = 0;
  cudaStream_t queue = nullptr;
};
thread_local Configuration pushed;
}  // namespace

extern "C" {

void** __cudaRegisterFatBinary(void* wrapper) {
  auto** handle = new void*(nullptr);
  try_call("register_module", wrapper, handle);
  return handle;
}

void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
char __cudaInitModule(void** module) { return try_call("use_module", module), 1; }

void __cudaRegisterFunction(void** module, const char* host, char*, const char* name, int, uint3*,
                            uint3*, dim3*, dim3*, int*) {
  try_call("register_kernel", module, host, name);
}

void __cudaRegisterVar(void** module, char* host, char*, const char* name, int, size_t size, int,
                       int) {
  try_call("register_variable", module, host, name, size);
}

void __cudaRegisterManagedVar(void** module, void** host, char*, const char* name, int, size_t size,
                              int, int) {
  try_call("register_managed", module, host, name, size);
}

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t dynamic_smem,
                                     cudaStream_t queue) {
  pushed = {grid, block, dynamic_smem, queue};
  return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* dynamic_smem, void* queue) {
  *grid = pushed.grid;
  *block = pushed.block;
  *dynamic_smem = pushed.dynamic_smem;
  *static_cast<cudaStream_t*>(queue) = pushed.queue;
  return cudaSuccess;
}

cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* host) {
  *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(host));
  return cudaSuccess;
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments,
                               size_t dynamic_smem, cudaStream_t queue) {
  return cudaLaunchKernel(kernel, grid, block, arguments, dynamic_smem, queue);
}

cudaError_t __cudaLaunchKernel_ptsz(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments,
                                    size_t dynamic_smem, cudaStream_t queue) {
  return cudaLaunchKernel(kernel, grid, block, arguments, dynamic_smem, queue);
}

}  // extern "C"

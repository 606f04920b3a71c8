// Memory of the CUDA runtime beyond plain allocations and copies: pitched, registered, in pools; and
// hints without an effect. It is compiled for programs that call one of these functions (../stand_in.py).
#include <cuda_runtime.h>

#include "runtime.h"

using namespace b200;
using namespace b200::runtime;

namespace {

constexpr size_t kPitch = 512;  // rows of a pitched allocation begin at multiples of it
const cudaMemPool_t the_pool = reinterpret_cast<cudaMemPool_t>(0x20);

}  // namespace

extern "C" {

// --- rows of a pitch
cudaError_t cudaMallocPitch(void** out, size_t* pitch, size_t width, size_t height) {
  *pitch = (width + kPitch - 1) / kPitch * kPitch;
  return cudaMalloc(out, *pitch * height);
}
cudaError_t cudaMemset2DAsync(void* address, size_t pitch, int value, size_t width, size_t height,
                              cudaStream_t queue) {
  for (size_t row = 0; row < height; ++row)
    if (const auto error =
            cudaMemsetAsync(static_cast<char*>(address) + row * pitch, value, width, queue))
      return error;
  return cudaSuccess;
}
cudaError_t cudaMemset2D(void* address, size_t pitch, int value, size_t width, size_t height) {
  return cudaMemset2DAsync(address, pitch, value, width, height, nullptr);
}

// --- memory of the host that kernels may use: a device pointer is a host address
cudaError_t cudaHostRegister(void* address, size_t nbytes, unsigned) {
  return ask("host_register", address, nbytes);
}
cudaError_t cudaHostUnregister(void* address) { return ask("host_unregister", address); }
cudaError_t cudaHostGetDevicePointer(void** out, void* address, unsigned) {
  *out = address;
  return cudaSuccess;
}

// --- the one pool, which keeps nothing
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int) {
  *pool = the_pool;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetMemPool(cudaMemPool_t* pool, int device) {
  return cudaDeviceGetDefaultMemPool(pool, device);
}
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) { return cudaSuccess; }
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t, size_t) { return cudaSuccess; }
cudaError_t cudaMallocFromPoolAsync(void** out, size_t nbytes, cudaMemPool_t, cudaStream_t queue) {
  return cudaMallocAsync(out, nbytes, queue);
}

// --- other devices: there is none
cudaError_t cudaDeviceCanAccessPeer(int* out, int, int) {
  *out = 0;
  return cudaSuccess;
}

// --- hints
cudaError_t cudaProfilerStart() { return cudaSuccess; }
cudaError_t cudaProfilerStop() { return cudaSuccess; }
cudaError_t cudaMemPrefetchAsync(const void*, size_t, cudaMemLocation, unsigned, cudaStream_t) {
  return cudaSuccess;
}
cudaError_t cudaMemAdvise(const void*, size_t, cudaMemoryAdvise, cudaMemLocation) {
  return cudaSuccess;
}
cudaError_t cudaStreamAttachMemAsync(cudaStream_t, void*, size_t, unsigned) { return cudaSuccess; }

}  // extern "C"

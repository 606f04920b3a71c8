// Stands in for torch's header.
#pragma once

#include <ATen/cuda/CUDAContextLight.h>
#include <c10/cuda/CUDAGuard.h>

#if __has_include(<cublasLt.h>)
#include <cublasLt.h>

namespace at::cuda {

inline cublasLtHandle_t getCurrentCUDABlasLtHandle() {
  cublasLtHandle_t handle = nullptr;
  cublasLtCreate(&handle);
  return handle;
}

}  // namespace at::cuda
#endif

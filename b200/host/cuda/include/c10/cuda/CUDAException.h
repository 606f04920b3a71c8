// Stands in for torch's header: a call of the software B200 that fails throws by itself.
#pragma once

#include <c10/cuda/CUDAMacros.h>
#include <c10/util/Exception.h>
#include <cuda_runtime.h>

#define C10_CUDA_CHECK(EXPR)                                                    \
  do {                                                                          \
    const cudaError_t b200_status = (EXPR);                                     \
    TORCH_CHECK(b200_status == cudaSuccess, cudaGetErrorString(b200_status));   \
  } while (0)
#define C10_CUDA_CHECK_WARN(EXPR) C10_CUDA_CHECK(EXPR)
#define C10_CUDA_ERROR_HANDLED(EXPR) (EXPR)
#define C10_CUDA_IGNORE_ERROR(EXPR) static_cast<void>(EXPR)
#define C10_CUDA_CLEAR_ERROR() static_cast<void>(cudaGetLastError())
#define C10_CUDA_KERNEL_LAUNCH_CHECK() C10_CUDA_CHECK(cudaGetLastError())

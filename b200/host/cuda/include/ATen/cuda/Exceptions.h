// Stands in for torch's header (see c10/cuda/CUDAException.h).
#pragma once

#include <c10/cuda/CUDAException.h>
#include <cuda.h>

#define AT_CUDA_CHECK(EXPR) C10_CUDA_CHECK(EXPR)
#define AT_CUDA_DRIVER_CHECK(EXPR)                                                          \
  do {                                                                                      \
    const CUresult b200_status = (EXPR);                                                    \
    TORCH_CHECK(b200_status == CUDA_SUCCESS, "CUDA driver error ", int(b200_status));       \
  } while (0)

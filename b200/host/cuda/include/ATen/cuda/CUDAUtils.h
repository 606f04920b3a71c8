// Stands in for torch's header: all tensors are on the one device.
#pragma once

#include <ATen/cuda/CUDAContext.h>
#include <ATen/core/Tensor.h>

namespace at::cuda {

inline bool check_device(ArrayRef<Tensor>) { return true; }

}  // namespace at::cuda

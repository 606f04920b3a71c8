// Stands in for torch's header: there is one device, number 0.
#pragma once

#include <c10/core/Device.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAMacros.h>
#include <cuda_runtime.h>

namespace c10::cuda {

inline DeviceIndex device_count() noexcept { return 1; }
inline DeviceIndex device_count_ensure_non_zero() { return 1; }
inline DeviceIndex current_device() { return 0; }
inline void set_device(DeviceIndex device) { cudaSetDevice(device); }
inline void device_synchronize() {}
inline void stream_synchronize(cudaStream_t) {}

}  // namespace c10::cuda

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
inline cudaError_t GetDevice(DeviceIndex* device) { return *device = 0, cudaSuccess; }
inline cudaError_t SetDevice(DeviceIndex device, bool = false) { return cudaSetDevice(device); }
inline cudaError_t MaybeSetDevice(DeviceIndex) { return cudaSuccess; }
inline DeviceIndex ExchangeDevice(DeviceIndex) { return 0; }
inline DeviceIndex MaybeExchangeDevice(DeviceIndex) { return 0; }
inline void device_synchronize() { cudaDeviceSynchronize(); }
inline void stream_synchronize(cudaStream_t) {}

}  // namespace c10::cuda

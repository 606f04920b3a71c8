// Stands in for torch's header, without the libraries (cuBLAS, cuSPARSE, cuSOLVER) of its context.
#pragma once

#include <ATen/cuda/Exceptions.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

namespace at::cuda {

inline cudaDeviceProp* getDeviceProperties(c10::DeviceIndex = 0) {
  static cudaDeviceProp* properties = [] {
    auto* made = new cudaDeviceProp;
    cudaGetDeviceProperties(made, 0);
    return made;
  }();
  return properties;
}
inline cudaDeviceProp* getCurrentDeviceProperties() { return getDeviceProperties(); }
inline int warp_size() { return 32; }
inline int64_t getNumGPUs() { return 1; }
inline bool is_available() { return true; }

}  // namespace at::cuda

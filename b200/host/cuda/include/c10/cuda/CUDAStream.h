// Stands in for torch's header: the software B200 has one device, and its queues are names.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>
#include <c10/cuda/CUDAFunctions.h>
#include <cuda_runtime.h>

extern "C" {
cudaStream_t b200_current_queue();
void b200_set_current_queue(cudaStream_t queue);
}

namespace c10::cuda {

class CUDAStream {
 public:
  CUDAStream() = default;
  explicit CUDAStream(cudaStream_t queue) : queue_(queue) {}
  cudaStream_t stream() const { return queue_; }
  StreamId id() const { return reinterpret_cast<StreamId>(queue_); }
  operator cudaStream_t() const { return queue_; }
  void synchronize() const { cudaStreamSynchronize(queue_); }
  bool query() const { return true; }
  DeviceIndex device_index() const { return 0; }
  Device device() const { return Device(DeviceType::CPU); }
  bool operator==(const CUDAStream& other) const { return queue_ == other.queue_; }
  bool operator!=(const CUDAStream& other) const { return queue_ != other.queue_; }

 private:
  cudaStream_t queue_ = nullptr;
};

inline CUDAStream getCurrentCUDAStream(DeviceIndex = -1) {
  return CUDAStream(b200_current_queue());
}
inline CUDAStream getDefaultCUDAStream(DeviceIndex = -1) { return {}; }
inline CUDAStream getStreamFromPool(bool = false, DeviceIndex = -1) {
  cudaStream_t queue = nullptr;
  cudaStreamCreateWithFlags(&queue, cudaStreamNonBlocking);
  return CUDAStream(queue);
}
inline CUDAStream getStreamFromExternal(cudaStream_t queue, DeviceIndex) { return CUDAStream(queue); }
inline void setCurrentCUDAStream(CUDAStream queue) { b200_set_current_queue(queue); }

}  // namespace c10::cuda

namespace at::cuda {
using namespace c10::cuda;
}  // namespace at::cuda

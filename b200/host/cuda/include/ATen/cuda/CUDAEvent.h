// Stands in for torch's header.
#pragma once

#include <ATen/cuda/CUDAContext.h>

namespace at::cuda {

class CUDAEvent {
 public:
  explicit CUDAEvent(unsigned = 0) { cudaEventCreate(&event_); }
  CUDAEvent(const CUDAEvent&) = delete;
  CUDAEvent& operator=(const CUDAEvent&) = delete;
  ~CUDAEvent() { cudaEventDestroy(event_); }
  operator cudaEvent_t() const { return event_; }
  cudaEvent_t event() const { return event_; }
  void record() { record(getCurrentCUDAStream()); }
  void record(const CUDAStream& queue) { cudaEventRecord(event_, queue); }
  void block(const CUDAStream& queue) { cudaStreamWaitEvent(queue, event_, 0); }
  void synchronize() const { cudaEventSynchronize(event_); }
  bool query() const { return true; }
  float elapsed_time(const CUDAEvent& other) const {
    float milliseconds = 0;
    cudaEventElapsedTime(&milliseconds, event_, other.event_);
    return milliseconds;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace at::cuda

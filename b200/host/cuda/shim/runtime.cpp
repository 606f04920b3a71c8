// The CUDA runtime API over a B200 in software: launches, attributes, memory, queues and events.
//
// A device pointer is a host address, and a launch has ended when its call returns. So there is
// nothing to wait for, and queues and events are names.
#include <cuda_runtime.h>

#include "runtime.h"

using namespace b200;
using namespace b200::runtime;

namespace {

void read_attribute(b200::Launch& launch, const cudaLaunchAttribute& attribute) {
  switch (attribute.id) {
    case cudaLaunchAttributeClusterDimension:
      std::memcpy(launch.cluster, &attribute.val.clusterDim, sizeof launch.cluster);
      break;
    case cudaLaunchAttributeCooperative:
      launch.cooperative = attribute.val.cooperative;
      break;
    case cudaLaunchAttributeProgrammaticStreamSerialization:
      launch.dependent = attribute.val.programmaticStreamSerializationAllowed != 0;
      break;
    // Where and when CTAs run, not what they do: kernels of one queue run one after the other here.
    case cudaLaunchAttributeIgnore:
    case cudaLaunchAttributeAccessPolicyWindow:
    case cudaLaunchAttributeSynchronizationPolicy:
    case cudaLaunchAttributeClusterSchedulingPolicyPreference:
    case cudaLaunchAttributePriority:
    case cudaLaunchAttributeMemSyncDomainMap:
    case cudaLaunchAttributeMemSyncDomain:
    case cudaLaunchAttributePreferredClusterDimension:
    case cudaLaunchAttributePreferredSharedMemoryCarveout:
      break;
    default:
      call("unknown_launch_attribute", attribute.id);
  }
}

b200::Launch plain(dim3 grid, dim3 block, void** arguments, size_t dynamic_smem,
                   cudaStream_t queue) {
  Launch launch{{grid.x, grid.y, grid.z}, {block.x, block.y, block.z}};
  launch.queue = word(queue);
  launch.dynamic_smem = dynamic_smem;
  launch.arguments = arguments;
  return launch;
}

b200::Launch configured(const cudaLaunchConfig_t* config, void** arguments) {
  auto launch = plain(config->gridDim, config->blockDim, arguments, config->dynamicSmemBytes,
                      config->stream);
  for (unsigned i = 0; i < config->numAttrs; ++i) read_attribute(launch, config->attrs[i]);
  return launch;
}

int device_attribute(int attribute) {
  int value = 0;
  call("device_attribute", attribute, &value);
  return value;
}

// The address of a variable with room for `nbytes`.
cudaError_t find_symbol(const void* symbol, size_t nbytes, char** address) {
  uint64_t size = 0;
  return ask("symbol", symbol, address, &size, nbytes);
}

// What a function without a queue returns: it waits.
cudaError_t waited(cudaError_t error) { return error ? error : cudaStreamSynchronize(nullptr); }

cudaError_t last_error(int take) {
  uint64_t code = 0;
  call("take_last_error", &code, take);
  return static_cast<cudaError_t>(code);
}

}  // namespace

extern "C" {

// --- launches and what is asked of a kernel
cudaError_t cudaLaunchKernel(const void* kernel, dim3 grid, dim3 block, void** arguments,
                             size_t dynamic_smem, cudaStream_t queue) {
  return result(b200::launch(kernel, plain(grid, block, arguments, dynamic_smem, queue)));
}

cudaError_t cudaLaunchCooperativeKernel(const void* kernel, dim3 grid, dim3 block, void** arguments,
                                        size_t dynamic_smem, cudaStream_t queue) {
  auto launch = plain(grid, block, arguments, dynamic_smem, queue);
  launch.cooperative = 1;
  return result(b200::launch(kernel, launch));
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* kernel,
                                void** arguments) {
  return result(b200::launch(kernel, configured(config, arguments)));
}

cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value) {
  return ask("set_kernel_attribute", kernel, attribute, value);
}

cudaError_t cudaFuncSetCacheConfig(const void*, cudaFuncCache) { return cudaSuccess; }

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* out, const void* kernel) {
  // registers, static shared bytes, constant bytes, local bytes, threads a CTA, dynamic limit
  int64_t facts[6];
  call("kernel_facts", kernel, facts);
  std::memset(out, 0, sizeof *out);
  out->numRegs = facts[0];
  out->sharedSizeBytes = facts[1];
  out->constSizeBytes = facts[2];
  out->localSizeBytes = facts[3];
  out->maxThreadsPerBlock = facts[4];
  out->maxDynamicSharedSizeBytes = facts[5];
  out->ptxVersion = out->binaryVersion = 100;
  return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void* kernel,
                                                                   int threads, size_t dynamic_smem,
                                                                   unsigned) {
  return ask("occupancy", kernel, threads, dynamic_smem, blocks);
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* kernel,
                                                          int threads, size_t dynamic_smem) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, kernel, threads,
                                                                dynamic_smem, 0);
}

cudaError_t cudaOccupancyMaxActiveClusters(int* clusters, const void* kernel,
                                           const cudaLaunchConfig_t* config) {
  const auto launch = configured(config, nullptr);
  return ask("occupancy_clusters", kernel, &launch, clusters);
}

cudaError_t cudaOccupancyMaxPotentialClusterSize(int* size, const void* kernel,
                                                 const cudaLaunchConfig_t*) {
  return ask("largest_cluster", kernel, size);
}

// --- memory
cudaError_t cudaMalloc(void** out, size_t nbytes) { return ask("allocate", nbytes, out, "cudaMalloc"); }
cudaError_t cudaMallocAsync(void** out, size_t nbytes, cudaStream_t queue) {
  return ask("allocate_in_queue", nbytes, out, queue);
}
cudaError_t cudaMallocManaged(void** out, size_t nbytes, unsigned) {
  return ask("allocate", nbytes, out, "cudaMallocManaged");
}
cudaError_t cudaMallocHost(void** out, size_t nbytes) {
  return ask("allocate", nbytes, out, "cudaMallocHost");
}
cudaError_t cudaHostAlloc(void** out, size_t nbytes, unsigned) {
  return ask("allocate", nbytes, out, "cudaHostAlloc");
}
cudaError_t cudaFree(void* address) { return ask("release", address, "cudaFree"); }
cudaError_t cudaFreeAsync(void* address, cudaStream_t queue) {
  return ask("release_in_queue", address, queue);
}
cudaError_t cudaFreeHost(void* address) { return ask("release", address, "cudaFreeHost"); }

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t nbytes, cudaMemcpyKind kind,
                            cudaStream_t queue) {
  return ask("copy", to, from, nbytes, kind, queue);
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t nbytes, cudaMemcpyKind kind) {
  return waited(cudaMemcpyAsync(to, from, nbytes, kind, nullptr));
}
cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                              size_t width, size_t height, cudaMemcpyKind kind,
                              cudaStream_t queue) {
  for (size_t row = 0; row < height; ++row)
    if (const auto error =
            cudaMemcpyAsync(static_cast<char*>(to) + row * to_pitch,
                            static_cast<const char*>(from) + row * from_pitch, width, kind, queue))
      return error;
  return cudaSuccess;
}
cudaError_t cudaMemcpy2D(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                         size_t width, size_t height, cudaMemcpyKind kind) {
  return waited(cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, width, height, kind, nullptr));
}
cudaError_t cudaMemsetAsync(void* address, int value, size_t nbytes, cudaStream_t queue) {
  return ask("fill", address, value, nbytes, queue);
}
cudaError_t cudaMemset(void* address, int value, size_t nbytes) {
  return cudaMemsetAsync(address, value, nbytes, nullptr);
}
cudaError_t cudaMemcpyToSymbolAsync(const void* symbol, const void* from, size_t nbytes,
                                    size_t offset, cudaMemcpyKind kind, cudaStream_t queue) {
  char* address = nullptr;
  if (const auto error = find_symbol(symbol, offset + nbytes, &address)) return error;
  return cudaMemcpyAsync(address + offset, from, nbytes, kind, queue);
}
cudaError_t cudaMemcpyToSymbol(const void* symbol, const void* from, size_t nbytes, size_t offset,
                               cudaMemcpyKind kind) {
  return waited(cudaMemcpyToSymbolAsync(symbol, from, nbytes, offset, kind, nullptr));
}
cudaError_t cudaMemcpyFromSymbolAsync(void* to, const void* symbol, size_t nbytes, size_t offset,
                                      cudaMemcpyKind kind, cudaStream_t queue) {
  char* address = nullptr;
  if (const auto error = find_symbol(symbol, offset + nbytes, &address)) return error;
  return cudaMemcpyAsync(to, address + offset, nbytes, kind, queue);
}
cudaError_t cudaMemcpyFromSymbol(void* to, const void* symbol, size_t nbytes, size_t offset,
                                 cudaMemcpyKind kind) {
  return waited(cudaMemcpyFromSymbolAsync(to, symbol, nbytes, offset, kind, nullptr));
}
cudaError_t cudaGetSymbolAddress(void** out, const void* symbol) {
  return find_symbol(symbol, 0, reinterpret_cast<char**>(out));
}
cudaError_t cudaGetSymbolSize(size_t* out, const void* symbol) {
  uint64_t address = 0;
  return ask("symbol", symbol, &address, out, 0);
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) { return ask("memory_info", free, total); }
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* out, const void* address) {
  std::memset(out, 0, sizeof *out);
  out->type = cudaMemoryTypeDevice;
  out->devicePointer = out->hostPointer = const_cast<void*>(address);
  return cudaSuccess;
}

// --- errors: the last one of what was refused; one of a kernel stays (../driver.py)
cudaError_t cudaPeekAtLastError() { return last_error(0); }
cudaError_t cudaGetLastError() { return last_error(1); }
const char* cudaGetErrorString(cudaError_t error) {
  static thread_local b200::Text text;
  return b200::text_of("error_text", error, text);
}
const char* cudaGetErrorName(cudaError_t error) {
  static thread_local b200::Text text;
  return b200::text_of("runtime_name", error, text);
}

// --- the device
cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) { return ask("set_device", device); }
cudaError_t cudaSetDeviceFlags(unsigned) { return cudaSuccess; }
cudaError_t cudaDeviceSynchronize() { return ask("wait"); }
cudaError_t cudaDeviceReset() { return ask("device_reset"); }
cudaError_t cudaDeviceSetLimit(cudaLimit limit, size_t value) {
  return ask("set_limit", limit, value);
}
cudaError_t cudaDeviceGetLimit(size_t* value, cudaLimit limit) {
  return ask("limit", limit, value);
}
cudaError_t cudaDeviceSetCacheConfig(cudaFuncCache) { return cudaSuccess; }
cudaError_t cudaCtxResetPersistingL2Cache() { return cudaSuccess; }
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  return ask("device_attribute", attribute, value);
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) { return cudaRuntimeGetVersion(version); }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* out, int) {
  std::memset(out, 0, sizeof *out);
  size_t free = 0;
  call("memory_info", &free, &out->totalGlobalMem);
  call("device_name", out->name, sizeof out->name);
  out->major = device_attribute(cudaDevAttrComputeCapabilityMajor);
  out->minor = device_attribute(cudaDevAttrComputeCapabilityMinor);
  out->multiProcessorCount = device_attribute(cudaDevAttrMultiProcessorCount);
  out->sharedMemPerBlock = device_attribute(cudaDevAttrMaxSharedMemoryPerBlock);
  out->sharedMemPerBlockOptin = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  out->sharedMemPerMultiprocessor = device_attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor);
  out->reservedSharedMemPerBlock = device_attribute(cudaDevAttrReservedSharedMemoryPerBlock);
  out->regsPerBlock = device_attribute(cudaDevAttrMaxRegistersPerBlock);
  out->regsPerMultiprocessor = device_attribute(cudaDevAttrMaxRegistersPerMultiprocessor);
  out->maxThreadsPerBlock = device_attribute(cudaDevAttrMaxThreadsPerBlock);
  out->maxThreadsPerMultiProcessor = device_attribute(cudaDevAttrMaxThreadsPerMultiProcessor);
  out->maxBlocksPerMultiProcessor = device_attribute(cudaDevAttrMaxBlocksPerMultiprocessor);
  out->l2CacheSize = device_attribute(cudaDevAttrL2CacheSize);
  out->persistingL2CacheMaxSize = device_attribute(cudaDevAttrMaxPersistingL2CacheSize);
  out->accessPolicyMaxWindowSize = device_attribute(cudaDevAttrMaxAccessPolicyWindowSize);
  out->memoryBusWidth = device_attribute(cudaDevAttrGlobalMemoryBusWidth);
  out->warpSize = device_attribute(cudaDevAttrWarpSize);
  out->maxThreadsDim[0] = out->maxThreadsDim[1] = 1024;
  out->maxThreadsDim[2] = 64;
  out->maxGridSize[0] = 0x7FFFFFFF;
  out->maxGridSize[1] = out->maxGridSize[2] = 65535;
  out->concurrentKernels = out->unifiedAddressing = 1;
  out->cooperativeLaunch = device_attribute(cudaDevAttrCooperativeLaunch);
  out->clusterLaunch = device_attribute(cudaDevAttrClusterLaunch);
  out->totalConstMem = device_attribute(cudaDevAttrTotalConstantMemory);
  out->memPitch = device_attribute(cudaDevAttrMaxPitch);
  out->textureAlignment = device_attribute(cudaDevAttrTextureAlignment);
  out->texturePitchAlignment = device_attribute(cudaDevAttrTexturePitchAlignment);
  out->surfaceAlignment = device_attribute(cudaDevAttrSurfaceAlignment);
  out->canMapHostMemory = device_attribute(cudaDevAttrCanMapHostMemory);
  out->ECCEnabled = device_attribute(cudaDevAttrEccEnabled);
  out->asyncEngineCount = device_attribute(cudaDevAttrAsyncEngineCount);
  out->streamPrioritiesSupported = device_attribute(cudaDevAttrStreamPrioritiesSupported);
  out->globalL1CacheSupported = device_attribute(cudaDevAttrGlobalL1CacheSupported);
  out->localL1CacheSupported = device_attribute(cudaDevAttrLocalL1CacheSupported);
  out->managedMemory = device_attribute(cudaDevAttrManagedMemory);
  out->concurrentManagedAccess = device_attribute(cudaDevAttrConcurrentManagedAccess);
  out->computePreemptionSupported = device_attribute(cudaDevAttrComputePreemptionSupported);
  out->hostRegisterSupported = device_attribute(cudaDevAttrHostRegisterSupported);
  out->memoryPoolsSupported = device_attribute(cudaDevAttrMemoryPoolsSupported);
  return cudaSuccess;
}

// --- queues and events
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* out, unsigned flags) {
  return ask("make_queue", flags, out);
}
cudaError_t cudaStreamCreate(cudaStream_t* out) { return cudaStreamCreateWithFlags(out, 0); }
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* out, unsigned flags, int) {
  return cudaStreamCreateWithFlags(out, flags);
}
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t queue) { return ask("wait_for_queue", queue); }
// What is in the queue before the callback is done when it is called.
cudaError_t cudaStreamAddCallback(cudaStream_t queue, cudaStreamCallback_t function, void* data,
                                  unsigned) {
  call("in_queue", 1);
  function(queue, cudaSuccess, data);
  call("in_queue", 0);
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t queue) { return cudaStreamSynchronize(queue); }
cudaError_t cudaStreamWaitEvent(cudaStream_t queue, cudaEvent_t event, unsigned) {
  return ask("queue_waits", queue, event);
}
cudaError_t cudaStreamSetAttribute(cudaStream_t, cudaStreamAttrID, const cudaStreamAttrValue*) {
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* out) {
  uint64_t recording = 0;
  call("recording", &recording);
  *out = recording ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* out) {
  *out = reinterpret_cast<cudaEvent_t>(new char);  // its address is its name
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* out, unsigned flags) {
  const auto error = cudaEventCreate(out);
  if (!error && flags & cudaEventDisableTiming) call("event_without_time", *out);
  return error;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t queue) {
  return ask("record_event", event, queue);
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t queue, unsigned) {
  return cudaEventRecord(event, queue);
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) { return ask("wait_for_event", event); }
cudaError_t cudaEventQuery(cudaEvent_t event) { return cudaEventSynchronize(event); }
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  call("forget_event", event);
  delete reinterpret_cast<char*>(event);
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  return ask("elapsed", start, end, milliseconds);
}

// PyTorch's current queue (../include/c10/cuda/CUDAStream.h)
cudaStream_t b200_current_queue() {
  cudaStream_t queue = nullptr;
  call("current_queue", &queue);
  return queue;
}
void b200_set_current_queue(cudaStream_t queue) { call("set_current_queue", queue); }

}  // extern "C"

// What the CUDA driver says of queues, pointers, kernels and the device, and copies whose direction
// it finds out. The one device has no other one beside it.
#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "driver.h"

using namespace b200;
using namespace b200::driver;

namespace {

constexpr int kLowest = 0, kHighest = -5;  // priorities of queues, as a B200 has them

struct Queue {
  unsigned flags;
  int priority;
};
std::mutex mutex;
std::map<CUstream, Queue>& queues() {
  static auto* all = new std::map<CUstream, Queue>;
  return *all;
}
Queue facts_of(CUstream queue) {
  std::lock_guard<std::mutex> lock(mutex);
  const auto found = queues().find(queue);
  return found == queues().end() ? Queue{CU_STREAM_DEFAULT, kLowest} : found->second;
}

enum Kind : uint64_t { kNothing, kOfDevice, kOfHost, kManaged };
struct Allocation {
  uint64_t kind = kNothing, first = 0, nbytes = 0, number = 0;
};
int find(CUdeviceptr address, Allocation& out) { return call("facts_pointer", address, &out); }

template <typename Value>
CUresult give(void* out, Value value) {
  *static_cast<Value*>(out) = value;
  return CUDA_SUCCESS;
}
// A fact about a pointer, 0 and null where nothing is known of it.
CUresult fact(void* out, CUpointer_attribute attribute, CUdeviceptr address, const Allocation& of) {
  const bool is_device = of.kind == kOfDevice || of.kind == kManaged;
  const bool is_host = of.kind == kOfHost || of.kind == kManaged;
  switch (static_cast<int>(attribute)) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      return of.kind ? cuCtxGetCurrent(static_cast<CUcontext*>(out)) : CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      return give<unsigned>(out, !of.kind ? 0 : is_device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST);
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: return give<uint64_t>(out, of.kind ? address : 0);
    case CU_POINTER_ATTRIBUTE_HOST_POINTER: return give<uint64_t>(out, is_host ? address : 0);
    case CU_POINTER_ATTRIBUTE_BUFFER_ID: return give<uint64_t>(out, of.number);
    case CU_POINTER_ATTRIBUTE_IS_MANAGED: return give<bool>(out, of.kind == kManaged);
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: return give<int>(out, of.kind ? 0 : -2);
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: return give<uint64_t>(out, of.first);
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: return give<size_t>(out, of.nbytes);
    case CU_POINTER_ATTRIBUTE_MAPPED: return give<bool>(out, of.kind != kNothing);
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
      return give<unsigned>(out, CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE);
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE: return give<bool>(out, false);
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE: return give<uint64_t>(out, 0);
    default: return ask("missing", "this CUpointer_attribute");
  }
}

template <typename Element>
CUresult fill(CUdeviceptr address, Element value, size_t count, CUstream queue) {
  const unsigned char* bytes = reinterpret_cast<const unsigned char*>(&value);
  bool same = true;
  for (size_t i = 1; i < sizeof value; ++i) same &= bytes[i] == bytes[0];
  if (same)
    return result(cudaMemsetAsync(reinterpret_cast<void*>(address), bytes[0], count * sizeof value, queue));
  const uint64_t words[6] = {address, value, sizeof value, count, 1, count * sizeof value};
  return ask("graph_fill", words, queue);
}

}  // namespace

extern "C" {

// --- queues
CUresult cuCtxGetStreamPriorityRange(int* lowest, int* highest) {
  if (lowest) *lowest = kLowest;
  if (highest) *highest = kHighest;
  return CUDA_SUCCESS;
}
CUresult cuStreamCreateWithPriority(CUstream* out, unsigned flags, int priority) {
  if (const auto error = cuStreamCreate(out, flags)) return error;
  std::lock_guard<std::mutex> lock(mutex);
  queues()[*out] = {flags, std::max(kHighest, std::min(kLowest, priority))};
  return CUDA_SUCCESS;
}
CUresult cuStreamGetFlags(CUstream queue, unsigned* flags) {
  *flags = facts_of(queue).flags;
  return CUDA_SUCCESS;
}
CUresult cuStreamGetPriority(CUstream queue, int* priority) {
  *priority = facts_of(queue).priority;
  return CUDA_SUCCESS;
}
CUresult cuStreamGetCtx(CUstream, CUcontext* context) { return cuCtxGetCurrent(context); }
#undef cuStreamGetCtx_v2
CUresult cuStreamGetCtx_v2(CUstream, CUcontext* context, CUgreenCtx* green) {
  if (green) *green = nullptr;
  return cuCtxGetCurrent(context);
}
CUresult cuStreamGetId(CUstream queue, unsigned long long* number) {
  *number = word(queue);
  return CUDA_SUCCESS;
}
CUresult cuStreamGetDevice(CUstream, CUdevice* device) { return cuCtxGetDevice(device); }
CUresult cuStreamQuery(CUstream queue) { return cuStreamSynchronize(queue); }
CUresult cuStreamIsCapturing(CUstream queue, CUstreamCaptureStatus* out) {
  uint64_t facts[4];
  const int code = call("graph_capture_info", queue, facts);
  *out = !code && facts[0] ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
  return result(code);
}
CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode*) { return CUDA_SUCCESS; }
CUresult cuLaunchHostFunc(CUstream queue, CUhostFn function, void* data) {
  return ask("graph_call_host", function, data, queue);
}
CUresult cuEventRecordWithFlags(CUevent event, CUstream queue, unsigned) {
  return cuEventRecord(event, queue);
}
#undef cuCtxGetDevice_v2
CUresult cuCtxGetDevice_v2(CUdevice* device, CUcontext) { return cuDeviceGet(device, 0); }
#undef cuCtxSynchronize_v2
CUresult cuCtxSynchronize_v2(CUcontext) { return cuCtxSynchronize(); }
CUresult cuCtxGetId(CUcontext, unsigned long long* number) {
  *number = 1;
  return CUDA_SUCCESS;
}
CUresult cuCtxGetFlags(unsigned* flags) {
  *flags = 0;
  return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxGetState(CUdevice, unsigned* flags, int* active) {
  *flags = 0, *active = 1;
  return CUDA_SUCCESS;
}

// --- the device
#undef cuDeviceGetUuid
CUresult cuDeviceGetUuid_v2(CUuuid* out, CUdevice) {
  std::memcpy(out->bytes, "software B200 #0", sizeof out->bytes);
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetUuid(CUuuid* out, CUdevice device) { return cuDeviceGetUuid_v2(out, device); }
CUresult cuDeviceGetPCIBusId(char* out, int length, CUdevice) {
  constexpr char id[] = "0000:00:00.0";
  if (length < static_cast<int>(sizeof id)) return CUDA_ERROR_INVALID_VALUE;
  std::memcpy(out, id, sizeof id);
  return CUDA_SUCCESS;
}
CUresult cuDeviceComputeCapability(int* major, int* minor, CUdevice) {
  *major = 10, *minor = 0;
  return CUDA_SUCCESS;
}
CUresult cuDeviceCanAccessPeer(int* out, CUdevice, CUdevice) {
  *out = 0;
  return CUDA_SUCCESS;
}

// --- pointers
CUresult cuPointerGetAttribute(void* out, CUpointer_attribute attribute, CUdeviceptr address) {
  Allocation of;
  if (const int code = find(address, of)) return result(code);
  if (!of.kind) return CUDA_ERROR_INVALID_VALUE;
  return fact(out, attribute, address, of);
}
CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute* attributes, void** out,
                                CUdeviceptr address) {
  Allocation of;
  if (const int code = find(address, of)) return result(code);
  for (unsigned i = 0; i < count; ++i)
    if (const auto error = fact(out[i], attributes[i], address, of)) return error;
  return CUDA_SUCCESS;
}
CUresult cuMemGetAddressRange(CUdeviceptr* first, size_t* nbytes, CUdeviceptr address) {
  Allocation of;
  if (const int code = find(address, of)) return result(code);
  if (!of.kind) return CUDA_ERROR_NOT_FOUND;
  if (first) *first = of.first;
  if (nbytes) *nbytes = of.nbytes;
  return CUDA_SUCCESS;
}
CUresult cuMemHostGetDevicePointer(CUdeviceptr* out, void* address, unsigned) {
  *out = word(address);
  return CUDA_SUCCESS;
}
CUresult cuMemHostRegister(void* address, size_t nbytes, unsigned) {
  return ask("host_register", address, nbytes);
}
CUresult cuMemHostUnregister(void* address) { return ask("host_unregister", address); }

// --- copies and fills; hints of where memory is to be
CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t nbytes, CUstream queue) {
  return result(cudaMemcpyAsync(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), nbytes,
                                cudaMemcpyDefault, queue));
}
CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t nbytes) {
  return result(cudaMemcpy(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), nbytes,
                           cudaMemcpyDefault));
}
CUresult cuMemsetD8Async(CUdeviceptr address, unsigned char value, size_t count, CUstream queue) {
  return fill<uint8_t>(address, value, count, queue);
}
CUresult cuMemsetD16Async(CUdeviceptr address, unsigned short value, size_t count, CUstream queue) {
  return fill<uint16_t>(address, value, count, queue);
}
CUresult cuMemsetD32Async(CUdeviceptr address, unsigned value, size_t count, CUstream queue) {
  return fill<uint32_t>(address, value, count, queue);
}
CUresult cuMemsetD16(CUdeviceptr address, unsigned short value, size_t count) {
  return fill<uint16_t>(address, value, count, nullptr);
}
#undef cuMemPrefetchAsync
#undef cuMemAdvise
CUresult cuMemPrefetchAsync_v2(CUdeviceptr, size_t, CUmemLocation, unsigned, CUstream) {
  return CUDA_SUCCESS;
}
CUresult cuMemAdvise_v2(CUdeviceptr, size_t, CUmem_advise, CUmemLocation) { return CUDA_SUCCESS; }

// --- kernels
CUresult cuFuncGetAttribute(int* out, CUfunction_attribute attribute, CUfunction kernel) {
  return ask("facts_attribute", kernel, attribute, out);
}
CUresult cuKernelGetAttribute(int* out, CUfunction_attribute attribute, CUkernel kernel, CUdevice) {
  return cuFuncGetAttribute(out, attribute, reinterpret_cast<CUfunction>(kernel));
}
CUresult cuFuncGetParamInfo(CUfunction kernel, size_t index, size_t* offset, size_t* nbytes) {
  CUdevice device;
  if (const auto error = cuCtxGetDevice(&device)) return error;
  return ask("facts_parameter", kernel, index, offset, nbytes);
}
CUresult cuKernelGetParamInfo(CUkernel kernel, size_t index, size_t* offset, size_t* nbytes) {
  return cuFuncGetParamInfo(reinterpret_cast<CUfunction>(kernel), index, offset, nbytes);
}
CUresult cuKernelGetLibrary(CUlibrary* out, CUkernel kernel) {
  return ask("facts_module_of", kernel, out);
}
CUresult cuLibraryGetModule(CUmodule* out, CUlibrary library) {
  *out = reinterpret_cast<CUmodule>(library);
  return CUDA_SUCCESS;
}
CUresult cuLibraryGetGlobal(CUdeviceptr* address, size_t* nbytes, CUlibrary library, const char* name) {
  return cuModuleGetGlobal(address, nbytes, reinterpret_cast<CUmodule>(library), name);
}
CUresult cuLibraryGetKernelCount(unsigned* count, CUlibrary library) {
  return ask("facts_kernel_count", library, count);
}
CUresult cuModuleGetFunctionCount(unsigned* count, CUmodule module) {
  return cuLibraryGetKernelCount(count, reinterpret_cast<CUlibrary>(module));
}
CUresult cuLibraryEnumerateKernels(CUkernel* kernels, unsigned most, CUlibrary library) {
  return ask("facts_kernels", library, kernels, most);
}
CUresult cuModuleEnumerateFunctions(CUfunction* functions, unsigned most, CUmodule module) {
  return ask("facts_kernels", module, functions, most);
}
CUresult cuLibraryLoadFromFile(CUlibrary* library, const char* path, CUjit_option* options,
                               void** values, unsigned count, CUlibraryOption* more, void** others,
                               unsigned many) {
  std::string image;
  if (!read_file(path, image)) return CUDA_ERROR_FILE_NOT_FOUND;
  return cuLibraryLoadData(library, image.c_str(), options, values, count, more, others, many);
}
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, CUfunction kernel, int threads,
                                                              size_t dynamic_smem, unsigned) {
  return cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks, kernel, threads, dynamic_smem);
}
CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int* grid, int* block, CUfunction kernel,
                                                   CUoccupancyB2DSize smem_of, size_t dynamic_smem,
                                                   int limit, unsigned) {
  return cuOccupancyMaxPotentialBlockSize(grid, block, kernel, smem_of, dynamic_smem, limit);
}
// The most bytes with which so many CTAs fit an SM, of all that a kernel may ask for.
CUresult cuOccupancyAvailableDynamicSMemPerBlock(size_t* out, CUfunction kernel, int blocks, int threads) {
  int64_t facts[6];  // the sixth is how many bytes a launch of it may ask for
  if (const int code = call("kernel_facts", kernel, facts)) return result(code);
  size_t least = 0, most = facts[5];
  while (least < most) {
    const size_t half = (least + most + 1) / 2;
    int fit = 0;
    if (const auto error = cuOccupancyMaxActiveBlocksPerMultiprocessor(&fit, kernel, threads, half))
      return error;
    fit >= blocks ? least = half : most = half - 1;
  }
  *out = least;
  return CUDA_SUCCESS;
}
CUresult cuOccupancyMaxPotentialClusterSize(int* size, CUfunction kernel, const CUlaunchConfig*) {
  return ask("largest_cluster", kernel, size);
}
CUresult cuOccupancyMaxActiveClusters(int* clusters, CUfunction kernel, const CUlaunchConfig* config) {
  const auto launch = launch_of(*config);
  return ask("occupancy_clusters", kernel, &launch, clusters);
}
CUresult cuLaunchCooperativeKernel(CUfunction kernel, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                                   unsigned by, unsigned bz, unsigned dynamic_smem, CUstream queue,
                                   void** arguments) {
  CUlaunchAttribute cooperative{};
  cooperative.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
  cooperative.value.cooperative = 1;
  CUlaunchConfig config{gx, gy, gz, bx, by, bz, dynamic_smem, queue, &cooperative, 1};
  return cuLaunchKernelEx(&config, kernel, arguments, nullptr);
}

}  // extern "C"

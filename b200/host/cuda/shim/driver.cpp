// The CUDA driver API over a B200 in software: tensormaps, modules from PTX, launches, memory.
#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "backend.h"

using b200::call;
using b200::word;

namespace {

// What a function returns; the runtime's cudaGetLastError does not know of it.
CUresult result(int code) {
  uint64_t number = 0;
  if (code) call("driver_code", {word(code), word(&number)});
  return static_cast<CUresult>(number);
}

CUcontext the_context = reinterpret_cast<CUcontext>(0x10);

b200::Launch plain(unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned dynamic_smem, void** arguments, void** packed) {
  b200::Launch launch{};
  const uint32_t sizes[6] = {gx, gy, gz, bx, by, bz};
  std::memcpy(launch.grid, sizes, 12);
  std::memcpy(launch.block, sizes + 3, 12);
  launch.dynamic_smem = dynamic_smem;
  launch.arguments = arguments;
  launch.packed = packed;
  return launch;
}

}  // namespace

extern "C" {

CUresult cuInit(unsigned) { return CUDA_SUCCESS; }
CUresult cuDriverGetVersion(int* version) {
  *version = CUDA_VERSION;
  return CUDA_SUCCESS;
}
CUresult cuGetErrorString(CUresult error, const char** text) {
  static thread_local b200::Text found;
  *text = b200::text_of("error_text", error, found);
  return CUDA_SUCCESS;
}
CUresult cuGetErrorName(CUresult error, const char** text) {
  static thread_local b200::Text found;
  *text = b200::text_of("driver_name", error, found);
  return CUDA_SUCCESS;
}

// --- device and context: there is one of each
CUresult cuDeviceGet(CUdevice* device, int) {
  *device = 0;
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetCount(int* count) {
  *count = 1;
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice) {
  return result(call("device_attribute", {word(attribute), word(value)}));
}
CUresult cuDeviceGetName(char* name, int length, CUdevice) {
  return result(call("device_name", {word(name), word(length)}));
}
CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice) {
  *context = the_context;
  return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRelease(CUdevice) { return CUDA_SUCCESS; }
CUresult cuCtxGetCurrent(CUcontext* context) {
  *context = the_context;
  return CUDA_SUCCESS;
}
CUresult cuCtxSetCurrent(CUcontext) { return CUDA_SUCCESS; }
CUresult cuCtxPushCurrent(CUcontext) { return CUDA_SUCCESS; }
CUresult cuCtxPopCurrent(CUcontext* context) {
  return context ? cuCtxGetCurrent(context) : CUDA_SUCCESS;
}
CUresult cuCtxDestroy(CUcontext) { return CUDA_SUCCESS; }
#undef cuCtxCreate
CUresult cuCtxCreate_v2(CUcontext* context, unsigned, CUdevice) { return cuCtxGetCurrent(context); }
CUresult cuCtxCreate_v4(CUcontext* context, CUctxCreateParams*, unsigned, CUdevice) {
  return cuCtxGetCurrent(context);
}
CUresult cuDeviceTotalMem(size_t* nbytes, CUdevice) {
  size_t free = 0;
  return result(cudaMemGetInfo(&free, nbytes));
}
CUresult cuMemGetInfo(size_t* free, size_t* total) { return result(cudaMemGetInfo(free, total)); }
CUresult cuCtxGetDevice(CUdevice* device) { return cuDeviceGet(device, 0); }
CUresult cuCtxSynchronize() { return result(call("wait", {})); }
CUresult cuStreamSynchronize(CUstream queue) {
  return result(call("wait_for_queue", {word(queue)}));
}

// --- tensormaps
CUresult cuTensorMapEncodeTiled(CUtensorMap* out, CUtensorMapDataType type, cuuint32_t rank,
                                void* address, const cuuint64_t* dims, const cuuint64_t* strides,
                                const cuuint32_t* box, const cuuint32_t* steps,
                                CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
  return result(call("tensor_map_encode_tiled",
       {word(out), word(type), rank, word(address), word(dims), word(strides), word(box),
        word(steps), word(interleave), word(swizzle), word(promotion), word(fill)}));
}

// --- modules, kernels and launches
CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  return result(call("load_ptx", {word(image), word(module)}));
}
CUresult cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned, CUjit_option*, void**) {
  return cuModuleLoadData(module, image);
}
CUresult cuModuleLoad(CUmodule* module, const char* path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return CUDA_ERROR_FILE_NOT_FOUND;
  const std::string image{std::istreambuf_iterator<char>(file), {}};
  return cuModuleLoadData(module, image.c_str());
}
CUresult cuModuleLoadFatBinary(CUmodule* module, const void* image) {
  return cuModuleLoadData(module, image);
}
CUresult cuModuleUnload(CUmodule) { return CUDA_SUCCESS; }
CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  return result(call("find_kernel", {word(module), word(name), word(function)}));
}
CUresult cuModuleGetGlobal(CUdeviceptr* address, size_t* nbytes, CUmodule module, const char* name) {
  return result(call("find_variable", {word(module), word(name), word(address), word(nbytes)}));
}
CUresult cuLibraryLoadData(CUlibrary* library, const void* image, CUjit_option*, void**, unsigned,
                           CUlibraryOption*, void**, unsigned) {
  return result(call("load_ptx", {word(image), word(library)}));
}
CUresult cuLibraryUnload(CUlibrary) { return CUDA_SUCCESS; }
CUresult cuLibraryGetKernel(CUkernel* kernel, CUlibrary library, const char* name) {
  return result(call("find_kernel", {word(library), word(name), word(kernel)}));
}
CUresult cuKernelGetFunction(CUfunction* function, CUkernel kernel) {
  *function = reinterpret_cast<CUfunction>(kernel);
  return CUDA_SUCCESS;
}
CUresult cuFuncSetAttribute(CUfunction kernel, CUfunction_attribute attribute, int value) {
  return result(call("set_kernel_attribute", {word(kernel), word(attribute), word(static_cast<int64_t>(value))}));
}
CUresult cuKernelSetAttribute(CUfunction_attribute attribute, int value, CUkernel kernel, CUdevice) {
  return cuFuncSetAttribute(reinterpret_cast<CUfunction>(kernel), attribute, value);
}
CUresult cuFuncSetCacheConfig(CUfunction, CUfunc_cache) { return CUDA_SUCCESS; }
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction kernel, int threads,
                                                     size_t dynamic_smem) {
  return result(call("occupancy", {word(kernel), word(threads), dynamic_smem, word(blocks)}));
}
// The largest CTA of those of which most threads fit an SM, as cuda_runtime.h has it for the runtime.
CUresult cuOccupancyMaxPotentialBlockSize(int* grid, int* block, CUfunction kernel,
                                          CUoccupancyB2DSize smem_of, size_t dynamic_smem,
                                          int limit) {
  int64_t facts[6];  // the fifth is how many threads a CTA of it may have
  if (const int code = call("kernel_facts", {word(kernel), word(facts)})) return result(code);
  const int most = limit ? std::min<int64_t>(limit, facts[4]) : facts[4];
  int sms = 0, best = 0;
  cuDeviceGetAttribute(&sms, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0);
  for (int rounded = (most + 31) / 32 * 32; rounded > 0; rounded -= 32) {
    const int threads = std::min(most, rounded);
    const size_t smem = smem_of ? smem_of(threads) : dynamic_smem;
    int blocks = 0;
    if (const auto error =
            cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, threads, smem))
      return error;
    if (threads * blocks > best) best = threads * blocks, *block = threads, *grid = blocks * sms;
  }
  return CUDA_SUCCESS;
}

CUresult cuLaunchKernel(CUfunction kernel, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                        unsigned by, unsigned bz, unsigned dynamic_smem, CUstream queue,
                        void** arguments, void** packed) {
  auto launch = plain(gx, gy, gz, bx, by, bz, dynamic_smem, arguments, packed);
  launch.queue = word(queue);
  return result(b200::launch(kernel, launch));
}

CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction kernel, void** arguments,
                          void** packed) {
  auto launch = plain(config->gridDimX, config->gridDimY, config->gridDimZ, config->blockDimX,
                      config->blockDimY, config->blockDimZ, config->sharedMemBytes, arguments,
                      packed);
  launch.queue = word(config->hStream);
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    const auto& attribute = config->attrs[i];
    if (attribute.id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) {
      launch.cluster[0] = attribute.value.clusterDim.x;
      launch.cluster[1] = attribute.value.clusterDim.y;
      launch.cluster[2] = attribute.value.clusterDim.z;
    } else if (attribute.id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE) {
      launch.cooperative = attribute.value.cooperative;
    } else if (attribute.id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION) {
      launch.dependent = attribute.value.programmaticStreamSerializationAllowed != 0;
    }
  }
  return result(b200::launch(kernel, launch));
}

// --- memory
CUresult cuMemAlloc(CUdeviceptr* out, size_t nbytes) {
  return result(call("allocate", {nbytes, word(out), word("cudaMalloc")}));
}
CUresult cuMemFree(CUdeviceptr address) {
  return result(call("release", {address}));
}
CUresult cuMemcpyHtoD(CUdeviceptr to, const void* from, size_t nbytes) {
  return result(cudaMemcpy(reinterpret_cast<void*>(to), from, nbytes, cudaMemcpyHostToDevice));
}
CUresult cuMemcpyDtoH(void* to, CUdeviceptr from, size_t nbytes) {
  return result(cudaMemcpy(to, reinterpret_cast<void*>(from), nbytes, cudaMemcpyDeviceToHost));
}
CUresult cuMemcpyDtoD(CUdeviceptr to, CUdeviceptr from, size_t nbytes) {
  return result(cudaMemcpy(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), nbytes,
             cudaMemcpyDeviceToDevice));
}
CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void* from, size_t nbytes, CUstream queue) {
  return result(cudaMemcpyAsync(reinterpret_cast<void*>(to), from, nbytes, cudaMemcpyHostToDevice,
                                queue));
}
CUresult cuMemcpyDtoHAsync(void* to, CUdeviceptr from, size_t nbytes, CUstream queue) {
  return result(cudaMemcpyAsync(to, reinterpret_cast<void*>(from), nbytes, cudaMemcpyDeviceToHost,
                                queue));
}
CUresult cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t nbytes, CUstream queue) {
  return result(cudaMemcpyAsync(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), nbytes,
                                cudaMemcpyDeviceToDevice, queue));
}
CUresult cuMemsetD8(CUdeviceptr address, unsigned char value, size_t count) {
  return result(cudaMemset(reinterpret_cast<void*>(address), value, count));
}
CUresult cuMemsetD32(CUdeviceptr address, unsigned value, size_t count) {
  const std::vector<unsigned> values(count, value);
  return result(cudaMemcpy(reinterpret_cast<void*>(address), values.data(), 4 * count,
                           cudaMemcpyHostToDevice));
}
CUresult cuMemAllocHost(void** out, size_t nbytes) { return result(cudaMallocHost(out, nbytes)); }
CUresult cuMemHostAlloc(void** out, size_t nbytes, unsigned) {
  return result(cudaMallocHost(out, nbytes));
}
CUresult cuMemFreeHost(void* address) { return result(cudaFreeHost(address)); }
CUresult cuMemAllocManaged(CUdeviceptr* out, size_t nbytes, unsigned) {
  return result(cudaMallocManaged(reinterpret_cast<void**>(out), nbytes, 0));
}

// --- queues and events
CUresult cuStreamCreate(CUstream* out, unsigned flags) {
  return result(cudaStreamCreateWithFlags(out, flags));
}
CUresult cuStreamDestroy(CUstream queue) { return result(cudaStreamDestroy(queue)); }
CUresult cuStreamWaitEvent(CUstream queue, CUevent event, unsigned flags) {
  return result(cudaStreamWaitEvent(queue, event, flags));
}
CUresult cuEventCreate(CUevent* out, unsigned flags) {
  return result(cudaEventCreateWithFlags(out, flags));
}
CUresult cuEventRecord(CUevent event, CUstream queue) {
  return result(cudaEventRecord(event, queue));
}
CUresult cuEventSynchronize(CUevent event) { return result(cudaEventSynchronize(event)); }
CUresult cuEventQuery(CUevent event) { return result(cudaEventQuery(event)); }
CUresult cuEventElapsedTime(float* out, CUevent start, CUevent end) {
  return result(cudaEventElapsedTime(out, start, end));
}
CUresult cuEventDestroy(CUevent event) { return result(cudaEventDestroy(event)); }

}  // extern "C"

// --- entry points by name
namespace {

#define ENTRY(name) {#name, reinterpret_cast<void*>(&name)}
const struct {
  const char* name;
  void* function;
} entries[] = {
    ENTRY(cuInit), ENTRY(cuDriverGetVersion), ENTRY(cuGetErrorString), ENTRY(cuGetErrorName),
    ENTRY(cuDeviceGet), ENTRY(cuDeviceGetCount), ENTRY(cuDeviceGetAttribute),
    ENTRY(cuDeviceGetName), ENTRY(cuDevicePrimaryCtxRetain), ENTRY(cuDevicePrimaryCtxRelease),
    ENTRY(cuCtxGetCurrent), ENTRY(cuCtxSetCurrent), ENTRY(cuCtxGetDevice), ENTRY(cuCtxSynchronize),
    ENTRY(cuStreamSynchronize), ENTRY(cuTensorMapEncodeTiled), ENTRY(cuModuleLoadData),
    ENTRY(cuModuleLoadDataEx), ENTRY(cuModuleUnload), ENTRY(cuModuleGetFunction),
    ENTRY(cuModuleGetGlobal), ENTRY(cuLibraryLoadData), ENTRY(cuLibraryUnload),
    ENTRY(cuLibraryGetKernel), ENTRY(cuKernelGetFunction), ENTRY(cuFuncSetAttribute),
    ENTRY(cuKernelSetAttribute), ENTRY(cuFuncSetCacheConfig),
    ENTRY(cuOccupancyMaxActiveBlocksPerMultiprocessor), ENTRY(cuLaunchKernel),
    ENTRY(cuOccupancyMaxPotentialBlockSize), ENTRY(cuModuleLoadFatBinary),
    ENTRY(cuLaunchKernelEx), ENTRY(cuMemAlloc), ENTRY(cuMemFree), ENTRY(cuMemcpyHtoD),
    ENTRY(cuMemcpyDtoH), ENTRY(cuMemcpyDtoD), ENTRY(cuMemsetD8), ENTRY(cuMemsetD32),
    ENTRY(cuMemcpyHtoDAsync), ENTRY(cuMemcpyDtoHAsync), ENTRY(cuMemcpyDtoDAsync),
    ENTRY(cuMemAllocHost), ENTRY(cuMemHostAlloc), ENTRY(cuMemFreeHost), ENTRY(cuMemAllocManaged),
    ENTRY(cuMemGetInfo), ENTRY(cuDeviceTotalMem), ENTRY(cuCtxPushCurrent), ENTRY(cuCtxPopCurrent),
    ENTRY(cuCtxDestroy), ENTRY(cuCtxCreate_v2), ENTRY(cuCtxCreate_v4), ENTRY(cuModuleLoad),
    ENTRY(cuStreamCreate), ENTRY(cuStreamDestroy), ENTRY(cuStreamWaitEvent), ENTRY(cuEventCreate),
    ENTRY(cuEventRecord), ENTRY(cuEventSynchronize), ENTRY(cuEventQuery), ENTRY(cuEventElapsedTime),
    ENTRY(cuEventDestroy),
};
#undef ENTRY

// cuda.h renames some functions ("cuMemAlloc" is cuMemAlloc_v2); a program may ask for either.
bool same_function(const std::string& entry, const std::string& asked) {
  const auto plain_name = [](const std::string& name) {
    const auto at = name.rfind("_v");
    return at != std::string::npos && at + 3 == name.size() ? name.substr(0, at) : name;
  };
  return plain_name(entry) == plain_name(asked);
}

void* entry_point(const char* name) {
  for (const auto& entry : entries)
    if (same_function(entry.name, name)) return entry.function;
  call("missing", {word(name)});
  return nullptr;
}

}  // namespace

extern "C" {

CUresult cuGetProcAddress(const char* name, void** out, int, cuuint64_t,
                          CUdriverProcAddressQueryResult* status) {
  *out = entry_point(name);
  if (status) *status = CU_GET_PROC_ADDRESS_SUCCESS;
  return CUDA_SUCCESS;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** out, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* status) {
  *out = entry_point(name);
  if (status) *status = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}

#undef cudaGetDriverEntryPoint
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
cudaError_t cudaGetDriverEntryPoint(const char* name, void** out, unsigned long long flags,
                                    cudaDriverEntryPointQueryResult* status) {
  return cudaGetDriverEntryPointByVersion(name, out, 0, flags, status);
}

}  // extern "C"

// The CUDA driver API over a B200 in software: tensormaps, modules from PTX, launches, memory.
#pragma GCC visibility push(default)  // entry_point() looks them up
#include <cuda.h>
#pragma GCC visibility pop
#include <cuda_runtime.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "driver.h"

using namespace b200;
using namespace b200::driver;

namespace {

CUcontext the_context = reinterpret_cast<CUcontext>(0x10);
// The contexts that a thread has pushed. It begins with the device's: a program that makes none is
// served, as the CUDA runtime serves it.
thread_local std::vector<CUcontext> contexts{the_context};

void* at(CUdeviceptr address) { return reinterpret_cast<void*>(address); }

// What the linker was given, and where the program wants its errors.
struct Link {
  std::vector<std::string> texts, names;
  char* errors = nullptr;
  size_t room = 0;
  void** size = nullptr;  // how much of it was written
};
void tell_error(const Link& link, const char* text) {
  if (!link.errors || !link.room) return;
  const size_t nbytes = std::min(std::strlen(text), link.room - 1);
  std::memcpy(link.errors, text, nbytes);
  link.errors[nbytes] = 0;
  if (link.size) *link.size = reinterpret_cast<void*>(nbytes + 1);
}

// What a program asks of the compiler of PTX: it says nothing, and takes no time.
CUresult answered(unsigned count, const CUjit_option* options, void** values) {
  for (unsigned i = 0; i < count; ++i) {
    const bool log = options[i] == CU_JIT_INFO_LOG_BUFFER || options[i] == CU_JIT_ERROR_LOG_BUFFER;
    if (log && values[i]) *static_cast<char*>(values[i]) = 0;
    if (options[i] == CU_JIT_WALL_TIME || options[i] == CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES ||
        options[i] == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES)
      values[i] = nullptr;
  }
  return CUDA_SUCCESS;
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

// Functions without a name, which NVIDIA's own libraries look for: there are none.
CUresult cuGetExportTable(const void** table, const CUuuid*) {
  *table = nullptr;
  return CUDA_ERROR_NOT_FOUND;
}

// --- device and context: there is one of each
CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  if (ordinal) return CUDA_ERROR_INVALID_DEVICE;
  *device = 0;
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetCount(int* count) {
  *count = 1;
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice) {
  return ask("device_attribute", attribute, value);
}
CUresult cuDeviceGetName(char* name, int length, CUdevice) {
  return ask("device_name", name, length);
}
CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice) {
  *context = the_context;
  return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRelease(CUdevice) { return CUDA_SUCCESS; }
CUresult cuCtxGetCurrent(CUcontext* context) {
  *context = contexts.empty() ? nullptr : contexts.back();
  return CUDA_SUCCESS;
}
CUresult cuCtxPushCurrent(CUcontext context) {
  if (context != the_context) return CUDA_ERROR_INVALID_CONTEXT;
  contexts.push_back(context);
  return CUDA_SUCCESS;
}
CUresult cuCtxSetCurrent(CUcontext context) {
  if (!contexts.empty()) contexts.pop_back();
  return context ? cuCtxPushCurrent(context) : CUDA_SUCCESS;
}
CUresult cuCtxPopCurrent(CUcontext* context) {
  if (contexts.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  if (context) *context = contexts.back();
  contexts.pop_back();
  return CUDA_SUCCESS;
}
CUresult cuCtxDestroy(CUcontext context) {
  if (context != the_context) return CUDA_ERROR_INVALID_CONTEXT;
  if (!contexts.empty()) contexts.pop_back();
  return CUDA_SUCCESS;
}
#undef cuCtxCreate
CUresult cuCtxCreate_v2(CUcontext* context, unsigned, CUdevice) {
  *context = the_context;
  return cuCtxPushCurrent(the_context);
}
CUresult cuCtxCreate_v4(CUcontext* context, CUctxCreateParams*, unsigned flags, CUdevice device) {
  return cuCtxCreate_v2(context, flags, device);
}
CUresult cuDeviceTotalMem(size_t* nbytes, CUdevice) {
  size_t free = 0;
  return result(cudaMemGetInfo(&free, nbytes));
}
CUresult cuMemGetInfo(size_t* free, size_t* total) { return result(cudaMemGetInfo(free, total)); }
CUresult cuCtxGetDevice(CUdevice* device) {
  return contexts.empty() ? CUDA_ERROR_INVALID_CONTEXT : cuDeviceGet(device, 0);
}
CUresult cuCtxSetLimit(CUlimit limit, size_t value) { return ask("set_limit", limit, value); }
CUresult cuCtxGetLimit(size_t* value, CUlimit limit) { return ask("limit", limit, value); }
CUresult cuCtxSynchronize() { return contexts.empty() ? CUDA_ERROR_INVALID_CONTEXT : ask("wait"); }
CUresult cuStreamSynchronize(CUstream queue) { return ask("wait_for_queue", queue); }

// --- tensormaps
CUresult cuTensorMapEncodeTiled(CUtensorMap* out, CUtensorMapDataType type, cuuint32_t rank,
                                void* address, const cuuint64_t* dims, const cuuint64_t* strides,
                                const cuuint32_t* box, const cuuint32_t* steps,
                                CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
  return ask("tensor_map_encode_tiled", out, type, rank, address, dims, strides, box, steps,
             interleave, swizzle, promotion, fill);
}

// --- modules, kernels and launches
CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  if (contexts.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  if (!image) return CUDA_ERROR_INVALID_VALUE;
  return ask("load_ptx", image, module);
}
CUresult cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned count,
                            CUjit_option* options, void** values) {
  answered(count, options, values);
  return cuModuleLoadData(module, image);
}
// --- the linker, of PTX
CUresult cuLinkCreate(unsigned count, CUjit_option* options, void** values, CUlinkState* out) {
  auto* link = new Link;
  for (unsigned i = 0; i < count; ++i) {
    if (options[i] == CU_JIT_ERROR_LOG_BUFFER) link->errors = static_cast<char*>(values[i]);
    if (options[i] == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES)
      link->room = reinterpret_cast<size_t>(values[i]), link->size = &values[i];
  }
  *out = reinterpret_cast<CUlinkState>(link);
  return answered(count, options, values);
}
CUresult cuLinkAddData(CUlinkState state, CUjitInputType type, void* data, size_t nbytes,
                       const char* name, unsigned, CUjit_option*, void**) {
  if (type != CU_JIT_INPUT_PTX) return ask("missing", "cuLinkAddData of machine code");
  const std::string text(static_cast<const char*>(data), nbytes);
  reinterpret_cast<Link*>(state)->texts.push_back(text.c_str());
  reinterpret_cast<Link*>(state)->names.push_back(name ? name : "");
  return CUDA_SUCCESS;
}
CUresult cuLinkAddFile(CUlinkState state, CUjitInputType type, const char* path, unsigned count,
                       CUjit_option* options, void** values) {
  std::string text;
  if (!read_file(path, text)) return CUDA_ERROR_FILE_NOT_FOUND;
  return cuLinkAddData(state, type, text.data(), text.size(), path, count, options, values);
}
// The image is the linked PTX, in the place of the texts it was made of.
CUresult cuLinkComplete(CUlinkState state, void** image, size_t* nbytes) {
  auto& link = *reinterpret_cast<Link*>(state);
  auto& texts = link.texts;
  std::vector<const char*> pointers, names;
  for (const auto& text : texts) pointers.push_back(text.c_str());
  for (const auto& name : link.names) names.push_back(name.c_str());
  const char* linked = nullptr;
  if (const int code = call("link_ptx", pointers.data(), names.data(), pointers.size(), &linked)) {
    b200::Text why;
    tell_error(link, b200::text_of("refused_text", code, why));
    return result(code);
  }
  texts = {linked};
  *image = texts[0].data();
  *nbytes = texts[0].size() + 1;
  return CUDA_SUCCESS;
}
CUresult cuLinkDestroy(CUlinkState state) {
  delete reinterpret_cast<Link*>(state);
  return CUDA_SUCCESS;
}
CUresult cuModuleLoad(CUmodule* module, const char* path) {
  std::string image;
  if (!read_file(path, image)) return CUDA_ERROR_FILE_NOT_FOUND;
  return cuModuleLoadData(module, image.c_str());
}
CUresult cuModuleLoadFatBinary(CUmodule* module, const void* image) {
  return cuModuleLoadData(module, image);
}
CUresult cuModuleUnload(CUmodule) { return CUDA_SUCCESS; }
CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  return ask("find_kernel", module, name, function);
}
CUresult cuModuleGetGlobal(CUdeviceptr* address, size_t* nbytes, CUmodule module, const char* name) {
  return ask("find_variable", module, name, address, nbytes);
}
CUresult cuLibraryLoadData(CUlibrary* library, const void* image, CUjit_option*, void**, unsigned,
                           CUlibraryOption*, void**, unsigned) {
  if (!image) return CUDA_ERROR_INVALID_VALUE;
  return ask("load_ptx", image, library);
}
CUresult cuLibraryUnload(CUlibrary) { return CUDA_SUCCESS; }
CUresult cuLibraryGetKernel(CUkernel* kernel, CUlibrary library, const char* name) {
  return ask("find_kernel", library, name, kernel);
}
CUresult cuKernelGetFunction(CUfunction* function, CUkernel kernel) {
  *function = reinterpret_cast<CUfunction>(kernel);
  return CUDA_SUCCESS;
}
CUresult cuFuncSetAttribute(CUfunction kernel, CUfunction_attribute attribute, int value) {
  return ask("set_kernel_attribute", kernel, attribute, value);
}
CUresult cuKernelSetAttribute(CUfunction_attribute attribute, int value, CUkernel kernel, CUdevice) {
  return cuFuncSetAttribute(reinterpret_cast<CUfunction>(kernel), attribute, value);
}
CUresult cuFuncSetCacheConfig(CUfunction, CUfunc_cache) { return CUDA_SUCCESS; }
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction kernel, int threads,
                                                     size_t dynamic_smem) {
  return ask("occupancy", kernel, threads, dynamic_smem, blocks);
}
// The largest CTA of those of which most threads fit an SM, as cuda_runtime.h has it for the runtime.
CUresult cuOccupancyMaxPotentialBlockSize(int* grid, int* block, CUfunction kernel,
                                          CUoccupancyB2DSize smem_of, size_t dynamic_smem,
                                          int limit) {
  int64_t facts[6];  // the fifth is how many threads a CTA of it may have
  if (const int code = call("kernel_facts", kernel, facts)) return result(code);
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
  if (contexts.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  Launch launch{{gx, gy, gz}, {bx, by, bz}};
  launch.dynamic_smem = dynamic_smem;
  launch.arguments = arguments;
  launch.packed = packed;
  launch.queue = word(queue);
  return result(b200::launch(kernel, launch));
}

CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction kernel, void** arguments,
                          void** packed) {
  if (contexts.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  auto launch = launch_of(*config);
  launch.arguments = arguments;
  launch.packed = packed;
  return result(b200::launch(kernel, launch));
}

// --- memory
CUresult cuMemAlloc(CUdeviceptr* out, size_t nbytes) {
  if (contexts.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  return ask("allocate", nbytes, out, "cudaMalloc");
}
CUresult cuMemFree(CUdeviceptr address) { return ask("release", address, "cuMemFree"); }
CUresult cuMemcpyHtoD(CUdeviceptr to, const void* from, size_t nbytes) {
  return result(cudaMemcpy(at(to), from, nbytes, cudaMemcpyHostToDevice));
}
CUresult cuMemcpyDtoH(void* to, CUdeviceptr from, size_t nbytes) {
  return result(cudaMemcpy(to, at(from), nbytes, cudaMemcpyDeviceToHost));
}
CUresult cuMemcpyDtoD(CUdeviceptr to, CUdeviceptr from, size_t nbytes) {
  return result(cudaMemcpy(at(to), at(from), nbytes, cudaMemcpyDeviceToDevice));
}
CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void* from, size_t nbytes, CUstream queue) {
  return result(cudaMemcpyAsync(at(to), from, nbytes, cudaMemcpyHostToDevice, queue));
}
CUresult cuMemcpyDtoHAsync(void* to, CUdeviceptr from, size_t nbytes, CUstream queue) {
  return result(cudaMemcpyAsync(to, at(from), nbytes, cudaMemcpyDeviceToHost, queue));
}
CUresult cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t nbytes, CUstream queue) {
  return result(cudaMemcpyAsync(at(to), at(from), nbytes, cudaMemcpyDeviceToDevice, queue));
}
CUresult cuMemsetD8(CUdeviceptr address, unsigned char value, size_t count) {
  return result(cudaMemset(at(address), value, count));
}
CUresult cuMemsetD32(CUdeviceptr address, unsigned value, size_t count) {
  const std::vector<unsigned> values(count, value);
  return result(cudaMemcpy(at(address), values.data(), 4 * count, cudaMemcpyHostToDevice));
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
  if (contexts.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  return result(cudaStreamCreateWithFlags(out, flags));
}
CUresult cuStreamDestroy(CUstream queue) { return result(cudaStreamDestroy(queue)); }
CUresult cuStreamWaitEvent(CUstream queue, CUevent event, unsigned flags) {
  return result(cudaStreamWaitEvent(queue, event, flags));
}
CUresult cuEventCreate(CUevent* out, unsigned flags) {
  if (contexts.empty()) return CUDA_ERROR_INVALID_CONTEXT;
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
// Whether a function is one that refuses (../stand_in.py: stubs); not there where there is none.
extern "C" __attribute__((weak)) bool b200_is_absent(const char* name);

namespace {

// A function of this library: cuda.h renames some ("cuMemAlloc" is cuMemAlloc_v2), and a program may
// ask for either. What the process has of another library's is not looked at. One that refuses is
// taken where there is no other.
void* entry_point(const char* name) {
  Dl_info own, other;
  dladdr(reinterpret_cast<void*>(&cuInit), &own);
  static void* const library = dlopen(own.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
  void* refuses = nullptr;
  for (const char* suffix : {"_v4", "_v3", "_v2", ""}) {
    const std::string full = std::string(name) + suffix;
    void* found = library ? dlsym(library, full.c_str()) : nullptr;
    if (!found || !dladdr(found, &other) || other.dli_fbase != own.dli_fbase) continue;
    if (!b200_is_absent || !b200_is_absent(full.c_str())) return found;
    if (!refuses) refuses = found;
  }
  return refuses;
}

}  // namespace

extern "C" {

CUresult cuGetProcAddress(const char* name, void** out, int, cuuint64_t,
                          CUdriverProcAddressQueryResult* status) {
  *out = entry_point(name);
  if (status) *status = *out ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  return *out ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** out, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* status) {
  *out = entry_point(name);
  if (status) *status = *out ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}

#undef cudaGetDriverEntryPoint
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
cudaError_t cudaGetDriverEntryPoint(const char* name, void** out, unsigned long long flags,
                                    cudaDriverEntryPointQueryResult* status) {
  return cudaGetDriverEntryPointByVersion(name, out, 0, flags, status);
}

}  // extern "C"

// Virtual memory management of the driver: addresses that are reserved, and memory that is mapped
// there. It is compiled for programs that call one of these functions (../stand_in.py).
#include <cuda.h>

#include "driver.h"

using namespace b200;
using namespace b200::driver;

extern "C" {

CUresult cuMemGetAllocationGranularity(size_t* out, const CUmemAllocationProp*,
                                       CUmemAllocationGranularity_flags) {
  return ask("virtual_granularity", out);
}
CUresult cuMemAddressReserve(CUdeviceptr* out, size_t nbytes, size_t alignment, CUdeviceptr,
                             unsigned long long) {
  return ask("virtual_reserve", out, nbytes, alignment);
}
CUresult cuMemAddressFree(CUdeviceptr address, size_t nbytes) {
  return ask("virtual_unreserve", address, nbytes);
}
CUresult cuMemCreate(CUmemGenericAllocationHandle* out, size_t nbytes, const CUmemAllocationProp*,
                     unsigned long long) {
  return ask("virtual_create", out, nbytes);
}
CUresult cuMemRelease(CUmemGenericAllocationHandle memory) {
  return ask("virtual_release", memory);
}
CUresult cuMemMap(CUdeviceptr address, size_t nbytes, size_t offset,
                  CUmemGenericAllocationHandle memory, unsigned long long) {
  return ask("virtual_map", address, nbytes, offset, memory);
}
CUresult cuMemUnmap(CUdeviceptr address, size_t nbytes) {
  return ask("virtual_unmap", address, nbytes);
}
CUresult cuMemSetAccess(CUdeviceptr address, size_t nbytes, const CUmemAccessDesc* access,
                        size_t count) {
  for (size_t i = 0; i < count; ++i) {
    const uint64_t allowed = access[i].flags;
    if (const int code = call("virtual_allow", address, nbytes, allowed)) return result(code);
  }
  return CUDA_SUCCESS;
}

}  // extern "C"

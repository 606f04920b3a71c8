// Memory of the CUDA driver that is reserved in the order of a queue, and its pools. A pool keeps
// nothing: what it has reserved is what is in use.
#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "driver.h"

using namespace b200;
using namespace b200::driver;

namespace {

struct Pool {
  CUmemPoolProps props{};
  uint64_t threshold = 0, used = 0, most = 0;  // bytes
  int reuse[3] = {1, 1, 1};  // CU_MEMPOOL_ATTR_REUSE_*: what a driver may do, which changes nothing
  CUmemAccess_flags access = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
};
struct Block {
  Pool* pool;
  size_t nbytes;
};

// The device's own pool, and every pool and block that there is.
struct Pools {
  std::mutex mutex;
  Pool own;
  CUmemoryPool current = reinterpret_cast<CUmemoryPool>(&own);
  std::map<CUmemoryPool, Pool*> known{{current, &own}};
  std::map<CUdeviceptr, Block> blocks;

  Pools() {
    own.props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    own.props.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  }
  Pool* find(CUmemoryPool pool) {
    const auto found = known.find(pool);
    return found == known.end() ? nullptr : found->second;
  }
};
Pools& pools() {
  static auto* all = new Pools;
  return *all;
}

const char* function_of(const Pool& pool) {
  if (pool.props.allocType == CU_MEM_ALLOCATION_TYPE_MANAGED) return "cudaMallocManaged";
  return pool.props.location.type == CU_MEM_LOCATION_TYPE_DEVICE ? nullptr : "cudaMallocHost";
}

}  // namespace

extern "C" {

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool* out, CUdevice device) {
  if (device) return CUDA_ERROR_INVALID_DEVICE;
  *out = reinterpret_cast<CUmemoryPool>(&pools().own);
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetMemPool(CUmemoryPool* out, CUdevice device) {
  if (device) return CUDA_ERROR_INVALID_DEVICE;
  *out = pools().current;
  return CUDA_SUCCESS;
}
CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool) {
  if (device) return CUDA_ERROR_INVALID_DEVICE;
  if (!pools().find(pool)) return CUDA_ERROR_INVALID_VALUE;
  pools().current = pool;
  return CUDA_SUCCESS;
}
CUresult cuMemGetDefaultMemPool(CUmemoryPool* out, CUmemLocation* location, CUmemAllocationType type) {
  static std::map<std::pair<int, int>, CUmemoryPool> made;
  auto& pool = made[{location->type, type}];
  if (location->type == CU_MEM_LOCATION_TYPE_DEVICE && type == CU_MEM_ALLOCATION_TYPE_PINNED)
    return cuDeviceGetDefaultMemPool(out, location->id);
  if (!pool) {
    CUmemPoolProps props{};
    props.allocType = type;
    props.location = *location;
    if (const auto error = cuMemPoolCreate(&pool, &props)) return error;
  }
  *out = pool;
  return CUDA_SUCCESS;
}
CUresult cuMemGetMemPool(CUmemoryPool* out, CUmemLocation* location, CUmemAllocationType type) {
  return cuMemGetDefaultMemPool(out, location, type);
}

CUresult cuMemPoolCreate(CUmemoryPool* out, const CUmemPoolProps* props) {
  if (props->handleTypes != CU_MEM_HANDLE_TYPE_NONE)
    return ask("missing", "cuMemPoolCreate with a handle type: IpcMemory");
  if (props->location.type == CU_MEM_LOCATION_TYPE_DEVICE && props->location.id)
    return CUDA_ERROR_INVALID_DEVICE;
  auto* pool = new Pool;
  pool->props = *props;
  std::lock_guard<std::mutex> lock(pools().mutex);
  *out = reinterpret_cast<CUmemoryPool>(pool);
  pools().known[*out] = pool;
  return CUDA_SUCCESS;
}
// A pool that is destroyed serves the blocks that it has given.
CUresult cuMemPoolDestroy(CUmemoryPool handle) {
  auto& all = pools();
  std::lock_guard<std::mutex> lock(all.mutex);
  Pool* pool = all.find(handle);
  if (!pool || pool == &all.own) return CUDA_ERROR_INVALID_VALUE;
  if (all.current == handle) all.current = reinterpret_cast<CUmemoryPool>(&all.own);
  all.known.erase(handle);
  for (auto& entry : all.blocks)
    if (entry.second.pool == pool) entry.second.pool = nullptr;
  delete pool;
  return CUDA_SUCCESS;
}
CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t) {
  return pools().find(pool) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemPoolGetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void* out) {
  const Pool* pool = pools().find(handle);
  if (!pool) return CUDA_ERROR_INVALID_VALUE;
  auto& number = *static_cast<uint64_t*>(out);
  switch (static_cast<int>(attribute)) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
      *static_cast<int*>(out) = pool->reuse[attribute - CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES];
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: number = pool->threshold; return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT: number = pool->used; return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH: number = pool->most; return CUDA_SUCCESS;
    default: return CUDA_ERROR_INVALID_VALUE;
  }
}
CUresult cuMemPoolSetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void* value) {
  Pool* pool = pools().find(handle);
  if (!pool) return CUDA_ERROR_INVALID_VALUE;
  const int reuse = attribute - CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES;
  if (reuse >= 0 && reuse < 3)
    pool->reuse[reuse] = *static_cast<int*>(value);
  else if (attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)
    pool->threshold = *static_cast<uint64_t*>(value);
  else if ((attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH || attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH) &&
           !*static_cast<uint64_t*>(value))
    pool->most = pool->used;
  else
    return CUDA_ERROR_INVALID_VALUE;
  return CUDA_SUCCESS;
}
// Who may use a pool: the one device, and the host where the memory is its own.
CUresult cuMemPoolGetAccess(CUmemAccess_flags* out, CUmemoryPool handle, CUmemLocation* location) {
  const Pool* pool = pools().find(handle);
  if (!pool) return CUDA_ERROR_INVALID_VALUE;
  if (location->type == CU_MEM_LOCATION_TYPE_DEVICE && location->id) return CUDA_ERROR_INVALID_DEVICE;
  const bool both = function_of(*pool) != nullptr;
  const bool is_device = location->type == CU_MEM_LOCATION_TYPE_DEVICE;
  *out = is_device || both ? pool->access : CU_MEM_ACCESS_FLAGS_PROT_NONE;
  return CUDA_SUCCESS;
}
CUresult cuMemPoolSetAccess(CUmemoryPool handle, const CUmemAccessDesc* descriptions, size_t count) {
  const Pool* pool = pools().find(handle);
  if (!pool) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < count; ++i) {
    const auto& asked = descriptions[i];
    if (asked.location.type == CU_MEM_LOCATION_TYPE_DEVICE && asked.location.id)
      return CUDA_ERROR_INVALID_DEVICE;
    if (asked.flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE) return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

// No lock is held while Python answers: what it lets go there may come back here.
CUresult cuMemAllocFromPoolAsync(CUdeviceptr* out, size_t nbytes, CUmemoryPool handle, CUstream queue) {
  auto& all = pools();
  const char* function = nullptr;
  {
    std::lock_guard<std::mutex> lock(all.mutex);
    const Pool* pool = all.find(handle);
    if (!pool) return CUDA_ERROR_INVALID_VALUE;
    if (!nbytes) return *out = 0, CUDA_SUCCESS;
    if (pool->props.maxSize && pool->used + nbytes > pool->props.maxSize)
      return CUDA_ERROR_OUT_OF_MEMORY;
    function = function_of(*pool);
  }
  const int code = function ? call("allocate", nbytes, out, function)
                            : call("allocate_in_queue", nbytes, out, queue);
  if (code) return result(code);
  std::lock_guard<std::mutex> lock(all.mutex);
  Pool* pool = all.find(handle);
  all.blocks[*out] = {pool, nbytes};
  if (pool) pool->used += nbytes, pool->most = std::max(pool->most, pool->used);
  return CUDA_SUCCESS;
}
CUresult cuMemAllocAsync(CUdeviceptr* out, size_t nbytes, CUstream queue) {
  return cuMemAllocFromPoolAsync(out, nbytes, pools().current, queue);
}
CUresult cuMemFreeAsync(CUdeviceptr address, CUstream queue) {
  if (!address) return CUDA_SUCCESS;
  auto& all = pools();
  Block block{};
  bool shared = false;
  {
    std::lock_guard<std::mutex> lock(all.mutex);
    const auto found = all.blocks.find(address);
    if (found != all.blocks.end()) block = found->second, all.blocks.erase(found);
    shared = block.pool && function_of(*block.pool);
    if (block.pool) block.pool->used -= block.nbytes;
  }
  return result(shared ? call("release", address, "cuMemFreeAsync")
                       : call("release_in_queue", address, queue));
}

}  // extern "C"

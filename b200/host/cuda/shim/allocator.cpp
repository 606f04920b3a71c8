// torch's CPU memory as PyTorch's allocator for CUDA would hand it out: in blocks that begin at
// multiples of 512 bytes (../../torch/aligned_storage.py). Keeps account of it, so that a pointer into a
// tensor that only C++ code holds is known to be legal global memory, and how far it reaches. It
// starts as memory that nobody has written (../../../chip/unwritten.py).
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <new>

namespace {

std::mutex guard;
std::map<uintptr_t, size_t>& live() {
  static auto* blocks = new std::map<uintptr_t, size_t>;  // outlives every tensor
  return *blocks;
}

class Accounting final : public c10::Allocator {
 public:
  Accounting(c10::Allocator* base, const char* pattern, size_t period, size_t limit)
      : base_(base), pattern_(pattern), period_(period), limit_(limit) {}

  c10::DataPtr allocate(size_t nbytes) override {
    const c10::Device cpu(c10::DeviceType::CPU);
    if (nbytes == 0) return {nullptr, nullptr, &Accounting::release, cpu};
    void* address = nullptr;
    if (posix_memalign(&address, kAlignment, nbytes) != 0) throw std::bad_alloc();
    {
      std::lock_guard<std::mutex> lock(guard);
      live()[reinterpret_cast<uintptr_t>(address)] = nbytes;
    }
    for (size_t at = 0; nbytes <= limit_ && at < nbytes; at += period_)
      memcpy(static_cast<char*>(address) + at, pattern_, std::min(period_, nbytes - at));
    return {address, address, &Accounting::release, cpu};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &Accounting::release; }
  void copy_data(void* to, const void* from, size_t nbytes) const override {
    base_->copy_data(to, from, nbytes);
  }

 private:
  static constexpr size_t kAlignment = 512;

  static void release(void* address) {
    {
      std::lock_guard<std::mutex> lock(guard);
      live().erase(reinterpret_cast<uintptr_t>(address));
    }
    free(address);
  }

  c10::Allocator* base_;
  const char* pattern_;
  size_t period_, limit_;
};

}  // namespace

// From now on torch's CPU memory is accounted for; 0 if its allocator cannot be wrapped. pattern: of
// unwritten memory, `period` bytes; limit: bytes of an allocation that is filled.
extern "C" int b200_account_for_allocations(const char* pattern, size_t period, size_t limit) {
  auto* base = c10::GetCPUAllocator();
  if (base->raw_deleter() == nullptr) return 0;
  c10::SetCPUAllocator(new Accounting(base, pattern, period, limit), 1);
  return 1;
}

// The allocation that holds `address`: its first byte and size; 0 if there is none.
extern "C" int b200_find_allocation(uint64_t address, uint64_t* first, uint64_t* nbytes) {
  std::lock_guard<std::mutex> lock(guard);
  auto at = live().upper_bound(address);
  if (at == live().begin()) return 0;
  --at;
  *first = at->first;
  *nbytes = at->second;
  return address < at->first + at->second;
}

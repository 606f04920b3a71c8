// Objects of the program that live as long as one of the driver's CUDA graphs.
#include <cuda.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "driver_graphs.h"

using namespace b200;

namespace {

std::mutex mutex;

struct Object {
  CUhostFn destroy;
  void* data;
  unsigned references;
};
// No lock is held while the program's function runs: it may call again.
void release(Object* object, unsigned count) {
  {
    std::lock_guard<std::mutex> lock(mutex);
    object->references -= std::min(count, object->references);
    if (object->references) return;
  }
  const auto destroy = object->destroy;
  void* data = object->data;
  delete object;
  destroy(data);
}
using Owned = std::vector<std::pair<Object*, unsigned>>;
std::map<uint64_t, Owned>& owned() {  // by graph, executable ones, too
  static auto* all = new std::map<uint64_t, Owned>;
  return *all;
}

}  // namespace

void b200::share_objects(uint64_t from, uint64_t to) {
  std::lock_guard<std::mutex> lock(mutex);
  const auto found = owned().find(from);
  if (found == owned().end()) return;
  const Owned objects = found->second;
  for (auto& entry : objects) entry.first->references += entry.second;
  auto& more = owned()[to];
  more.insert(more.end(), objects.begin(), objects.end());
}
void b200::replace_objects(const std::vector<uint64_t>& from, uint64_t to) {
  constexpr uint64_t kAside = 0;  // no graph has this handle
  {
    std::lock_guard<std::mutex> lock(mutex);
    auto& all = owned();
    const auto found = all.find(to);
    if (found != all.end()) {
      auto& aside = all[kAside];
      aside.insert(aside.end(), found->second.begin(), found->second.end());
      all.erase(found);
    }
  }
  for (const auto graph : from) share_objects(graph, to);
  release_objects(kAside);
}
void b200::release_objects(uint64_t graph) {
  Owned ending;
  {
    std::lock_guard<std::mutex> lock(mutex);
    const auto found = owned().find(graph);
    if (found == owned().end()) return;
    ending.swap(found->second);
    owned().erase(found);
  }
  for (auto& entry : ending) release(entry.first, entry.second);
}

extern "C" {

CUresult cuUserObjectCreate(CUuserObject* out, void* data, CUhostFn destroy, unsigned references, unsigned) {
  if (!references || !destroy) return CUDA_ERROR_INVALID_VALUE;
  *out = reinterpret_cast<CUuserObject>(new Object{destroy, data, references});
  return CUDA_SUCCESS;
}
CUresult cuUserObjectRetain(CUuserObject object, unsigned count) {
  std::lock_guard<std::mutex> lock(mutex);
  reinterpret_cast<Object*>(object)->references += count;
  return CUDA_SUCCESS;
}
CUresult cuUserObjectRelease(CUuserObject object, unsigned count) {
  release(reinterpret_cast<Object*>(object), count);
  return CUDA_SUCCESS;
}
CUresult cuGraphRetainUserObject(CUgraph graph, CUuserObject handle, unsigned count, unsigned flags) {
  auto* object = reinterpret_cast<Object*>(handle);
  std::lock_guard<std::mutex> lock(mutex);
  if (!(flags & CU_GRAPH_USER_OBJECT_MOVE)) object->references += count;
  owned()[word(graph)].push_back({object, count});
  return CUDA_SUCCESS;
}
CUresult cuGraphReleaseUserObject(CUgraph graph, CUuserObject handle, unsigned count) {
  auto* object = reinterpret_cast<Object*>(handle);
  unsigned left = count;
  {
    std::lock_guard<std::mutex> lock(mutex);
    auto& all = owned()[word(graph)];
    for (auto& entry : all)
      if (entry.first == object) {
        const unsigned now = std::min(entry.second, left);
        entry.second -= now, left -= now;
      }
    all.erase(std::remove_if(all.begin(), all.end(), [](const auto& entry) { return !entry.second; }),
              all.end());
  }
  if (left) return CUDA_ERROR_INVALID_VALUE;
  release(object, count);
  return CUDA_SUCCESS;
}

}  // extern "C"

// What the files of the CUDA runtime have in common. cudaGetLastError knows of what its functions return.
#pragma once

#include <cuda_runtime.h>

#include "backend.h"

namespace b200::runtime {

inline cudaError_t result(int code) {
  if (code) call("note_error", code);
  return static_cast<cudaError_t>(code);
}

template <typename... Words>
cudaError_t ask(const char* name, Words... words) { return result(call(name, words...)); }

}  // namespace b200::runtime

// What a function of the CUDA driver returns; the runtime's cudaGetLastError does not know of it.
#pragma once

#include <cuda.h>

#include "backend.h"

namespace b200 {

inline CUresult result(int code) { return static_cast<CUresult>(driver_code(code)); }

}  // namespace b200

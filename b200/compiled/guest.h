#pragma once

#include "backend.h"
#include "give_up.h"

namespace b200 {

// Lead the CUDA runtime that nvcc has linked into the program and its libraries to this library.
void redirect_static_runtimes();

}  // namespace b200

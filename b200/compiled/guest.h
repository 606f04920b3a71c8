#pragma once

#include "backend.h"

namespace b200 {

// A line on stderr, and the end of the process with status 2.
[[noreturn, gnu::format(printf, 1, 2)]] void give_up(const char* format, ...);

// Lead the CUDA runtime that nvcc has linked into the program and its libraries to this library.
void redirect_static_runtimes();

}  // namespace b200

// The two functions every compiled program calls, filled in by ../driver.py before one is loaded.
#include "backend.h"

extern "C" {
int (*b200_cuda_call)(const char*, const uint64_t*, int) = nullptr;
const char* (*b200_cuda_error)() = nullptr;
int b200_on_gpu = 0;  // whether the call that runs was given tensors on the GPU
}

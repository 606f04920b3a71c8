// The CUDA driver and NVRTC of a Python process, for packages that call them from machine code
// (cuda.core): ../../cuda_python/core.py loads this library, and puts the address of what answers there.
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "interpreter.h"

extern "C" {
int (*b200_python_call)(const char* name, const uint64_t* words, int count) = nullptr;
}

namespace {

int call_python(const char* name, const uint64_t* words, int count) {
  b200::ExceptionWaits here;
  return b200_python_call(name, words, count);
}
const char* no_exception() { return ""; }  // Python answers with a number, whatever happens

}  // namespace

extern "C" {
int (*b200_cuda_call)(const char* name, const uint64_t* words, int count) = call_python;
const char* (*b200_cuda_error)() = no_exception;
}

void b200::give_up(const char* format, ...) {
  std::va_list words;
  va_start(words, format);
  std::vfprintf(stderr, format, words);
  std::fputs("\n", stderr);
  std::exit(2);
}

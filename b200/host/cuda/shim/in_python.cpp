// The CUDA driver and NVRTC of a Python process, for packages that call them from machine code
// (cuda.core): ../../cuda_python/core.py loads this library, and puts the address of what answers there.
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "give_up.h"

namespace {
const char* no_exception() { return ""; }  // Python answers with a number, whatever happens
}  // namespace

namespace b200 {

void give_up(const char* format, ...) {
  std::va_list words;
  va_start(words, format);
  std::vfprintf(stderr, format, words);
  std::fputs("\n", stderr);
  std::exit(2);
}

}  // namespace b200

extern "C" {
// Of Python's C API, which this process has.
int PyGILState_Ensure();
void PyGILState_Release(int);
void PyErr_Fetch(void** type, void** value, void** trace);
void PyErr_Restore(void* type, void* value, void* trace);

int (*b200_python_call)(const char* name, const uint64_t* words, int count) = nullptr;
}

namespace {
// A destructor that runs while an exception is on its way calls, too: the exception waits meanwhile, as Python
// cannot answer with one that is set.
int call_python(const char* name, const uint64_t* words, int count) {
  const int state = PyGILState_Ensure();
  void *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  const int answer = b200_python_call(name, words, count);
  PyErr_Restore(type, value, trace);
  PyGILState_Release(state);
  return answer;
}
}  // namespace

extern "C" {
int (*b200_cuda_call)(const char* name, const uint64_t* words, int count) = call_python;
const char* (*b200_cuda_error)() = no_exception;
}

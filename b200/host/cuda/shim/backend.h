// The way from the CUDA calls of a compiled program to the Python side (../driver.py).
//
// Every call goes through one function: a name and its arguments as 64-bit words; results are
// written through addresses among them. It returns 0, or the number that CUDA has for what a B200
// refuses (../../refusals.py), which is the program's to act on. A negative one means that Python has an
// exception: it leaves here as a C++ exception with the same text, so that it reaches the caller
// through pybind11 or torch.ops and no program can overlook it.
#pragma once

#include <cstdint>
#include <cstring>
#include <stdexcept>

// Weak: an extension that a setup.py has built is also imported where there is no software B200.
extern "C" {
extern __attribute__((weak)) int (*b200_cuda_call)(const char* name, const uint64_t* words, int count);
extern __attribute__((weak)) const char* (*b200_cuda_error)();
}

namespace b200 {

inline bool is_there() { return &b200_cuda_call && b200_cuda_call; }

template <typename T>
uint64_t word(T* pointer) { return reinterpret_cast<uint64_t>(pointer); }
template <typename T>
uint64_t word(T value) { return static_cast<uint64_t>(value); }

template <typename... Words>
int try_call(const char* name, Words... words) {
  if (!is_there()) return 100;  // cudaErrorNoDevice
  const uint64_t all[] = {word(words)..., 0};
  return b200_cuda_call(name, all, sizeof...(words));
}

template <typename... Words>
int call(const char* name, Words... words) {
  if (!is_there())
    throw std::runtime_error(
        "compiled for a B200 in software, which is not in this process: run it with"
        " `python -m b200 run`, or its tests with `pytest --b200`");
  const int code = try_call(name, words...);
  if (code < 0) throw std::runtime_error(b200_cuda_error());
  return code;
}

// What a launch asks for besides its kernel. A dimension of 0 stands for "not given".
struct Launch {
  uint32_t grid[3];
  uint32_t block[3];
  uint32_t cluster[3] = {0, 0, 0};
  uint32_t cooperative = 0;
  uint32_t dependent = 0;  // may start before the launch before has ended
  uint64_t dynamic_smem = 0;
  void** arguments = nullptr;
  void** packed = nullptr;  // CU_LAUNCH_PARAM_BUFFER_POINTER and its companions
  uint64_t queue = 0;
};

inline int launch(const void* kernel, const Launch& launch) { return call("launch", kernel, &launch); }

// The CUresult for a number of the runtime.
inline int driver_code(int code) {
  uint64_t number = 0;
  if (code) call("driver_code", code, &number);
  return static_cast<int>(number);
}

using Text = char[4096];

// The text or name of an error, in `text`. table: "runtime_name", "driver_name", "error_text".
inline const char* text_of(const char* table, int code, Text& text) {
  call(table, code, &text[0], sizeof text);
  return text;
}

}  // namespace b200

// NVRTC of a program: its own library compiles, for real. In the place of machine code the program
// gets PTX with the lines of its source, which the driver here takes.
#include <dlfcn.h>

#include <cstring>
#include <initializer_list>
#include <vector>

#include "give_up.h"

namespace {

// Of NVRTC's library, which comes behind this one.
template <typename... Words>
int real(const char* name, Words... words) {
  auto function = reinterpret_cast<int (*)(Words...)>(dlsym(RTLD_NEXT, name));
  if (!function) b200::give_up("%s is not in the process: link it with -lnvrtc", name);
  return function(words...);
}

bool is_one_of(const char* word, std::initializer_list<const char*> names) {
  for (const char* name : names)
    if (std::strcmp(word, name) == 0) return true;
  return false;
}

}  // namespace

extern "C" {

int nvrtcGetCUBINSize(void* program, size_t* nbytes) {
  return real("nvrtcGetPTXSize", program, nbytes);
}
int nvrtcGetCUBIN(void* program, char* out) { return real("nvrtcGetPTX", program, out); }
int nvrtcCompileProgram(void* program, int count, const char* const* options) {
  std::vector<const char*> kept{"--generate-line-info"};
  for (int i = 0; i < count; ++i)
    if (!is_one_of(options[i], {"--generate-line-info", "-lineinfo", "--device-debug", "-G"}))
      kept.push_back(options[i]);
  return real("nvrtcCompileProgram", program, static_cast<int>(kept.size()),
              static_cast<const char* const*>(kept.data()));
}

}  // extern "C"

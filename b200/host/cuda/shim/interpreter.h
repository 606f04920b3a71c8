// The interpreter of this process, whose functions are found by name: it may come later than this library.
#pragma once

#include <dlfcn.h>

#include "give_up.h"

namespace b200 {

template <typename F>
F function_of(void* library, const char* name) {
  auto found = reinterpret_cast<F>(dlsym(library, name));
  if (!found) give_up("%s is not in the interpreter's library", name);
  return found;
}

// A destructor that runs while a Python exception is on its way calls, too. The exception waits while this lives, as
// Python cannot answer with one that is set.
class ExceptionWaits {
 public:
  ExceptionWaits() : state_(functions().ensure()) { functions().fetch(&type_, &value_, &trace_); }
  ~ExceptionWaits() {
    functions().restore(type_, value_, trace_);
    functions().release(state_);
  }

 private:
  struct Functions {
    int (*ensure)();
    void (*release)(int);
    void (*fetch)(void**, void**, void**);
    void (*restore)(void*, void*, void*);
  };
  static const Functions& functions() {
    static const Functions found = {
        function_of<int (*)()>(RTLD_DEFAULT, "PyGILState_Ensure"),
        function_of<void (*)(int)>(RTLD_DEFAULT, "PyGILState_Release"),
        function_of<void (*)(void**, void**, void**)>(RTLD_DEFAULT, "PyErr_Fetch"),
        function_of<void (*)(void*, void*, void*)>(RTLD_DEFAULT, "PyErr_Restore"),
    };
    return found;
  }
  int state_;
  void *type_, *value_, *trace_;
};

}  // namespace b200

// The software B200 inside the process of a compiled CUDA program: this file, the CUDA runtime and
// driver of ../host/cuda/shim/ and redirect.cpp are the library that `b200 exec` puts there.
//
// Python is a guest. It starts with the first call that is more than a registration, so a program
// that only prints its help starts none. Where the program is Python, its own interpreter is used.
//
// $B200_LIBPYTHON: the interpreter's library; $B200_PYTHON: its program, which decides on the virtual
// environment; $B200_HOME: the folder with the package b200.
#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cfenv>
#include <clocale>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

#include "guest.h"
#include "interpreter.h"

using b200::function_of;

namespace {

using Call = int (*)(const char*, const uint64_t*, int);
struct Kept {  // a registration before Python runs
  std::string name;
  std::vector<uint64_t> words;
};

std::atomic<Call> python{nullptr};  // guest.py: Driver.answer
std::atomic<int (*)(int)> finish{nullptr};  // guest.py: the status that the process is to end with
std::recursive_mutex& starting() {
  static auto* mutex = new std::recursive_mutex;
  return *mutex;
}
std::vector<Kept>& kept() {
  static auto* calls = new std::vector<Kept>;
  return *calls;
}

// The program's rounding, traps and flushing of denormals are not those of the software B200.
class PlainArithmetic {
 public:
  PlainArithmetic() { fegetenv(&its_), fesetenv(FE_DFL_ENV); }
  ~PlainArithmetic() { fesetenv(&its_); }

 private:
  fenv_t its_;
};

const char* variable(const char* name) {
  const char* value = getenv(name);
  if (!value) b200::give_up("%s is not set: start the program with `b200 exec`", name);
  return value;
}

// A forked child goes on with the same interpreter.
void follow_forks(void* library) {
  static auto before = function_of<void (*)()>(library, "PyOS_BeforeFork");
  static auto parent = function_of<void (*)()>(library, "PyOS_AfterFork_Parent");
  static auto child = function_of<void (*)()>(library, "PyOS_AfterFork_Child");
  static auto ensure = function_of<int (*)()>(library, "PyGILState_Ensure");
  static auto release = function_of<void (*)(int)>(library, "PyGILState_Release");
  static thread_local int state = 0;
  pthread_atfork([] { state = ensure(), before(); }, [] { parent(), release(state); },
                 [] { child(), release(state); });
}

void start_python() {
  variable("B200_HOME");
  auto runs = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "Py_IsInitialized"));
  const bool is_python = runs && runs();
  void* library = RTLD_DEFAULT;
  int state = 0;
  if (is_python) {
    state = function_of<int (*)()>(library, "PyGILState_Ensure")();
  } else {
    library = dlopen(variable("B200_LIBPYTHON"), RTLD_NOW | RTLD_GLOBAL);
    if (!library) b200::give_up("%s", dlerror());
    const std::string program = variable("B200_PYTHON");
    auto* wide = new std::wstring(program.begin(), program.end());  // Python keeps the pointer
    const std::string locale = setlocale(LC_CTYPE, nullptr);
    function_of<void (*)(const wchar_t*)>(library, "Py_SetProgramName")(wide->c_str());
    function_of<void (*)(int)>(library, "Py_InitializeEx")(0);  // it takes no signals
    setlocale(LC_CTYPE, locale.c_str());
  }
  const std::string code =
      std::string("import os, sys\nsys.path.insert(") + (is_python ? "len(sys.path)" : "0") +
      ", os.environ['B200_HOME'])\nfrom b200.compiled import guest\nguest.connect(" +
      std::to_string(reinterpret_cast<uintptr_t>(&python)) + ", " +
      std::to_string(reinterpret_cast<uintptr_t>(&finish)) + (is_python ? ", True)" : ", False)");
  if (function_of<int (*)(const char*)>(library, "PyRun_SimpleString")(code.c_str()))
    b200::give_up("the software B200 does not start");
  if (is_python) return function_of<void (*)(int)>(library, "PyGILState_Release")(state);
  function_of<void* (*)()>(library, "PyEval_SaveThread")();
  follow_forks(library);
}

int enter(const char* name, const uint64_t* words, int count) {
  PlainArithmetic here;
  if (!python) {
    std::lock_guard<std::recursive_mutex> lock(starting());
    if (!python && std::strncmp(name, "register_", 9) == 0) {
      kept().push_back({name, {words, words + count}});
      return 0;
    }
    if (!python) {
      start_python();
      for (const auto& call : kept())
        python.load()(call.name.c_str(), call.words.data(), static_cast<int>(call.words.size()));
      kept().clear();
    }
  }
  b200::ExceptionWaits meanwhile;
  return python.load()(name, words, count);
}

const char* no_exception() { return ""; }  // Python answers with a number here, whatever happens

void at_exit(int status, void*) {
  if (!finish) return;
  std::fflush(nullptr);
  PlainArithmetic here;
  const int wanted = finish.load()(status);
  if (wanted != status) std::fflush(nullptr), _exit(wanted);
}

__attribute__((constructor)) void begin() {
  on_exit(at_exit, nullptr);  // the first that is registered is the last to run
  b200::redirect_static_runtimes();
}

}  // namespace

extern "C" {
__attribute__((visibility("default"))) Call b200_cuda_call = enter;
__attribute__((visibility("default"))) const char* (*b200_cuda_error)() = no_exception;
}

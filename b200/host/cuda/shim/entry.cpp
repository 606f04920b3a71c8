// The way into a program with a `main` (program.py), and what would end the process: it comes back
// here.
#include <csetjmp>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <string>

int program_main(int, char**) asm("main");  // whatever the program declares it to take

namespace {
const int aborted = 128 + SIGABRT;  // as a shell has it
std::jmp_buf back;
thread_local bool runs_main = false;  // elsewhere there is no way back
void (*last_words)(const char*) = nullptr;  // of a thread beside main; does not return
int status = 0;
char thrown[65536];

[[noreturn]] void leave(int code) {
  status = code;
  std::longjmp(back, 1);
}
}  // namespace

extern "C" {
#define ENDS(exit)                                 \
  [[noreturn]] void __real_##exit(int code);       \
  [[noreturn]] void __wrap_##exit(int code) {      \
    if (!runs_main) __real_##exit(code);           \
    leave(code);                                   \
  }
ENDS(exit)
ENDS(quick_exit)
ENDS(_exit)
ENDS(_Exit)
[[noreturn]] void __real_abort();
[[noreturn]] void __wrap_abort() {
  if (!runs_main) __real_abort();
  std::fputs("aborted\n", stderr);
  leave(aborted);
}
[[noreturn]] void __wrap___assert_fail(const char* what, const char* file, unsigned line,
                                       const char* function) {
  std::fprintf(stderr, "%s:%u: %s: Assertion `%s' failed.\n", file, line, function, what);
  __wrap_abort();
}
static void terminated() {
  std::string said = "terminated";
  try {
    if (std::current_exception()) throw;
  } catch (const std::exception& error) {
    said = std::string("terminated by an exception: ") + error.what();
  } catch (...) {
    said = "terminated by an exception";
  }
  if (!runs_main) last_words(said.c_str());
  std::fprintf(stderr, "%s\n", said.c_str());
  leave(aborted);
}
__attribute__((visibility("default"))) int b200_run(int count, char** words,
                                                    void (*in_a_thread)(const char*)) {
  runs_main = true;
  last_words = in_a_thread;
  const std::terminate_handler usual = std::set_terminate(terminated);
  if (setjmp(back) == 0) {
    try {
      status = program_main(count, words);
    } catch (const std::exception& error) {
      std::strncpy(thrown, error.what(), sizeof thrown - 1);
      status = -1;
    }
  }
  std::set_terminate(usual);
  runs_main = false;
  std::fflush(nullptr);
  return status;
}
__attribute__((visibility("default"))) const char* b200_thrown() { return thrown; }
__attribute__((visibility("default"))) void b200_leave() {  // by ../shim/guard.cpp
  if (!runs_main) last_words("");
  leave(aborted);
}
}

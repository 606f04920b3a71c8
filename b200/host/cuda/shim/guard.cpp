// Touches of memory that host code may not touch, or not yet (../host_view.py): the fault of the
// processor is caught and asked about. One library for the process.
#include <execinfo.h>
#include <signal.h>
#include <ucontext.h>

#include <cstdint>

namespace {

constexpr int kFrames = 64;

// Whether the access may be made again; else the program ends. frames: return addresses, the
// innermost first, and the access itself as one.
using Asked = int (*)(uint64_t address, int writes, void** frames, int count);

uint64_t first = 0, end = 0;
Asked asked = nullptr;
void (*leave)() = nullptr;
struct sigaction usual;

// 1 for a write, 0 for a read, -1 where the processor does not say.
int is_write(void* context) {
#ifdef __x86_64__
  return static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_ERR] >> 1 & 1;
#else
  (void)context;
  return -1;
#endif
}

uint64_t place(void* context) {
  const auto& registers = static_cast<ucontext_t*>(context)->uc_mcontext;
#ifdef __x86_64__
  return registers.gregs[REG_RIP];
#else
  return registers.pc;
#endif
}

void caught(int, siginfo_t* info, void* context) {
  const auto at = reinterpret_cast<uint64_t>(info->si_addr);
  if (at < first || at >= end) {
    sigaction(SIGSEGV, &usual, nullptr);  // the access is made again, and ends as without us
    return;
  }
  void* frames[kFrames];
  const int count = backtrace(frames, kFrames);
  for (int i = 0; i < count; ++i)  // a return address stands behind its call
    if (frames[i] == reinterpret_cast<void*>(place(context)))
      frames[i] = static_cast<char*>(frames[i]) + 1;
  if (!asked(at, is_write(context), frames, count)) leave();
}

}  // namespace

extern "C" {

// From now on accesses to [low, high) that fault are asked about. at_end does not return.
void b200_guard(uint64_t low, uint64_t high, Asked ask, void (*at_end)()) {
  first = low, end = high, asked = ask, leave = at_end;
  struct sigaction ours = {};
  ours.sa_sigaction = caught;
  ours.sa_flags = SA_SIGINFO | SA_NODEFER;  // `leave` jumps out of the handler
  void* frames[1];
  backtrace(frames, 1);  // loads what it needs
  sigaction(SIGSEGV, &ours, &usual);
}

void b200_unguard() { sigaction(SIGSEGV, &usual, nullptr); }

}  // extern "C"

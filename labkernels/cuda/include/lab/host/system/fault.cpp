#include "lab/host/system/fault.hpp"

#include <dlfcn.h>
#include <setjmp.h>

#include <mutex>
#include <string>

#include "lab/host/machine/rendezvous.hpp"
#include "lab/host/machine/report.hpp"
#include "lab/host/system/memory_map.hpp"

namespace lab::host {

struct Fault {
  int signal;
  const void* address;
  const void* instruction;
};

struct Guard {
  sigjmp_buf escape;  // where execution goes on after a fault in a kernel
  Fault fault;
};

namespace {

constexpr int signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
constexpr int n_signals = 4;
constexpr std::size_t signal_stack_bytes = 64 * 1024;
constexpr u64 max_steps = 1u << 28, steps_between_looks = 1u << 16;

std::mutex mutex;
int n_users = 0;
struct sigaction before[n_signals];

const void* instruction_of(void* context) {
  const auto* c = static_cast<const ucontext_t*>(context);
#if defined(__linux__) && defined(__x86_64__)
  return reinterpret_cast<const void*>(c->uc_mcontext.gregs[REG_RIP]);
#elif defined(__linux__) && defined(__aarch64__)
  return reinterpret_cast<const void*>(c->uc_mcontext.pc);
#elif defined(__APPLE__) && defined(__aarch64__)
  return reinterpret_cast<const void*>(c->uc_mcontext->__ss.__pc);
#elif defined(__APPLE__) && defined(__x86_64__)
  return reinterpret_cast<const void*>(c->uc_mcontext->__ss.__rip);
#else
  return c == nullptr ? nullptr : nullptr;
#endif
}

void on_fault(int signal, siginfo_t* info, void* context) {
  if (sm != nullptr && sm->thread != scheduler) {
    Guard& guard = *worker().guard;
    guard.fault = {signal, info->si_addr, instruction_of(context)};
    siglongjmp(guard.escape, 1);
  }
  // The fault is not a kernel's: the access is repeated under the handler that was there before.
  for (int i = 0; i < n_signals; ++i)
    if (signals[i] == signal) sigaction(signal, &before[i], nullptr);
}

// Returns the message. It is made after the signal handler, where memory may be allocated.
std::string describe(const Fault& fault, const Worker& m) {
  const auto* address = static_cast<const char*>(fault.address);
  const std::string where = " at " + code_place(fault.instruction);
  if (fault.signal == SIGFPE) return this_thread() + ": divides an integer by zero" + where;
  if (fault.signal == SIGILL) return this_thread() + ": reaches code that must not run" + where;
  if (in_arena(m, address)) {
    return this_thread() + ": shared memory out of bounds: byte " +
           std::to_string(address - reinterpret_cast<const char*>(m.shared)) + " of " +
           std::to_string(m.shared_bytes) + where;
  }
  const int owner = stack_owner(m, address);
  if (owner >= 0) {
    return this_thread() + ": overflows the stack of " + std::to_string(stack_bytes) +
           " bytes that a thread has" + where;
  }
  return this_thread() + ": touches address " + hexadecimal(address) + ", which is not memory" +
         where;
}

}  // namespace

std::string code_place(const void* instruction) {
  Dl_info info;
  if (dladdr(instruction, &info) == 0 || info.dli_fname == nullptr) return "an unknown line";
  const auto offset = static_cast<const char*>(instruction) - static_cast<char*>(info.dli_fbase);
  return "<<" + std::string(info.dli_fname) + "+" +
         hexadecimal(reinterpret_cast<const void*>(offset)) + ">>";
}

void run_guarded(Worker& m) {
  Guard guard;
  m.guard = &guard;
  if (sigsetjmp(guard.escape, 1) == 0) {
    switch_to(0);
  } else {
    m.error = describe(guard.fault, m);
  }
  m.thread = scheduler;
}

FaultHandlers::FaultHandlers() {
  const std::lock_guard lock(mutex);
  if (n_users++ != 0) return;
  struct sigaction action = {};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  for (int i = 0; i < n_signals; ++i) sigaction(signals[i], &action, &before[i]);
}

FaultHandlers::~FaultHandlers() {
  const std::lock_guard lock(mutex);
  if (--n_users != 0) return;
  for (int i = 0; i < n_signals; ++i) sigaction(signals[i], &before[i], nullptr);
}

namespace {

std::atomic<std::atomic<long long>*> interrupted{nullptr};
struct sigaction interrupt_before;

void on_interrupt(int signal, siginfo_t* info, void* context) {
  if (std::atomic<long long>* failed_block = interrupted) *failed_block = all_blocks;
  if ((interrupt_before.sa_flags & SA_SIGINFO) != 0) {
    interrupt_before.sa_sigaction(signal, info, context);
  } else if (interrupt_before.sa_handler != SIG_DFL) {
    interrupt_before.sa_handler(signal);
  } else {
    sigaction(signal, &interrupt_before, nullptr);
    raise(signal);
  }
}

}  // namespace

InterruptHandler::InterruptHandler(std::atomic<long long>* failed_block) {
  if (failed_block == nullptr || interrupted.load() != nullptr) return;
  sigaction(SIGINT, nullptr, &interrupt_before);
  const bool is_plain = (interrupt_before.sa_flags & SA_SIGINFO) == 0;
  if (is_plain && interrupt_before.sa_handler == SIG_IGN) return;
  interrupted = failed_block;
  struct sigaction action = {};
  action.sa_sigaction = on_interrupt;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  installed_ = sigaction(SIGINT, &action, nullptr) == 0;
}

InterruptHandler::~InterruptHandler() {
  if (!installed_) return;
  sigaction(SIGINT, &interrupt_before, nullptr);
  interrupted = nullptr;
}

SignalStack::SignalStack() : memory_(new char[signal_stack_bytes]) {
  stack_t stack = {};
  stack.ss_sp = memory_.get();
  stack.ss_size = signal_stack_bytes;
  sigaltstack(&stack, &before_);
}

SignalStack::~SignalStack() { sigaltstack(&before_, nullptr); }

}  // namespace lab::host

// A kernel that is built with bounded steps calls this in each of its basic blocks: an endless loop
// becomes an error, and SIGINT ends the loop earlier.
extern "C" LAB_EXPORT void __sanitizer_cov_trace_pc() {
  using namespace lab::host;
  if (sm == nullptr || sm->thread == scheduler) return;
  Worker& m = worker();
  if (++m.steps % steps_between_looks != 0) return;
  leave_if_pointless();
  if (m.steps < max_steps) return;
  const auto* next = static_cast<const char*>(__builtin_return_address(0));
  const Warp& warp = my_warp();
  fail("does not end: its block has taken " + std::to_string(m.steps) + " steps, the last one at " +
       code_place(next - 1) +
       (warp.word == Word::none
            ? ""
            : std::string(", after ") + name_of(warp.word) + " at " + place(warp.where)));
}

namespace {

struct Type {  // as -fsanitize=bounds describes one
  unsigned short kind, info;
  char name[32];
};

struct Index {
  const char* file;
  unsigned line, column;
  const Type *array, *type;
};

}  // namespace

// The same kernel calls this where an index leaves its own dimension, be it inside of the array.
extern "C" LAB_EXPORT void __ubsan_handle_out_of_bounds(const Index* at, std::uintptr_t index) {
  using namespace lab::host;
  if (sm == nullptr || sm->thread == scheduler) return;
  const auto* next = static_cast<const char*>(__builtin_return_address(0));
  const bool is_int = at->type->info == ((5 << 1) | 1);  // of 2^5 bits, signed
  const auto n = is_int ? static_cast<int>(index) : static_cast<long long>(index);
  fail("index " + std::to_string(n) + " is out of bounds of its dimension, " + at->array->name +
       ", at " + code_place(next - 1));
}

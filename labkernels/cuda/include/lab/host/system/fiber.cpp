#include "lab/host/system/fiber.hpp"

#include <cstddef>
#include <cstdint>

namespace lab::host {

#if defined(LAB_FIBER_PORTABLE)

// This is not inline, because a function that calls setjmp cannot be inlined.
void switch_fiber(Fiber& from, Fiber& to) {
  from.started = true;
  if (_setjmp(from.place) != 0) return;
  if (to.started) _longjmp(to.place, 1);
  to.started = true;
  setcontext(&to.start);
}

void start_fiber(Fiber& fiber, char* bottom, char* top, void (*entry)()) {
  getcontext(&fiber.start);
  fiber.start.uc_stack.ss_sp = bottom;
  fiber.start.uc_stack.ss_size = static_cast<std::size_t>(top - bottom);
  fiber.start.uc_link = nullptr;
  makecontext(&fiber.start, entry, 0);
  fiber.started = false;
}

#elif defined(__x86_64__)

void start_fiber(Fiber& fiber, char*, char* top, void (*entry)()) {
  auto address = reinterpret_cast<std::uintptr_t>(top) & ~std::uintptr_t{63};
  auto** slot = reinterpret_cast<void**>(address);
  *--slot = nullptr;  // where a return address would be: ends a debugger's walk
  *--slot = reinterpret_cast<void*>(entry);
  fiber = slot;
}

#else

void start_fiber(Fiber& fiber, char*, char* top, void (*entry)()) {
  auto address = reinterpret_cast<std::uintptr_t>(top) & ~std::uintptr_t{63};
  auto** frame = reinterpret_cast<void**>(address - 160);
  frame[0] = frame[1] = nullptr;  // x29, x19
  frame[2] = reinterpret_cast<void*>(entry);
  fiber = frame;
}

#endif

}  // namespace lab::host

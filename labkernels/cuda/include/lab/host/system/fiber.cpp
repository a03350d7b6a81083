#include "lab/host/system/fiber.hpp"

#include <cstdint>

namespace lab::host {

#if defined(__x86_64__)

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

// Two fibers that take turns while each holds more values than a processor has registers.
// Prints a sum of the values of each, which no turn of the other may change.
#include "lab/host/system/fiber.cpp"

#include <cstdint>
#include <cstdio>

namespace {
constexpr int n_values = 40;
constexpr std::size_t stack_bytes = 1 << 18;
alignas(64) char stack[stack_bytes];
lab::host::Fiber first, second;

[[gnu::noinline]] std::uint64_t turns(std::uint64_t x, lab::host::Fiber& own,
                                      lab::host::Fiber& other) {
  std::uint64_t values[n_values];
#pragma GCC unroll 64
  for (auto& value : values) value = x = x * 6364136223846793005u + 1442695040888963407u;
  for (int turn = 0; turn < 3; ++turn) {
    lab::host::switch_fiber(own, other);
#pragma GCC unroll 64
    for (auto& value : values) value = value * 3 + turn;
  }
  std::uint64_t sum = 0;
#pragma GCC unroll 64
  for (auto& value : values) sum = sum * 31 + value;
  return sum;
}

void show(std::uint64_t sum) { std::printf("%016llx\n", static_cast<unsigned long long>(sum)); }

void entry() {
  show(turns(2, second, first));
  lab::host::switch_fiber(second, first);
}
}  // namespace

int main() {
  lab::host::start_fiber(second, stack, stack + stack_bytes, entry);
  const auto sum = turns(1, first, second);
  lab::host::switch_fiber(first, second);
  show(sum);
}

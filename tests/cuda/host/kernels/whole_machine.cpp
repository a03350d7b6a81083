// Small kernels on the whole CPU machine, as one program: prints a checksum of what each writes.
#include <cstdio>
#include <vector>

#include "pipeline.cuh"
#include "warpgroup.cuh"

namespace {
using namespace lab::host;
using lab::u64;

template <class Params, void (*kernel)(Params)> void run_thread(const void* params) {
  kernel(*static_cast<const Params*>(params));
}

template <class Params, void (*kernel)(Params)>
void run(const char* name, Params params, const std::vector<unsigned>& in, std::vector<float>& out,
         int blocks, int smem_bytes) {
  const GlobalRange ranges[] = {{"input", reinterpret_cast<u64>(in.data()), in.size() * 4, 0},
                                {"output", reinterpret_cast<u64>(out.data()), out.size() * 4, 1}};
  const Launch launch{{blocks, 1, 1}, 128, static_cast<u64>(smem_bytes), &params, ranges, 2, 2, 0};
  char error[4096];
  if (lab_launch(&launch, run_thread<Params, kernel>, error, sizeof error)) {
    std::printf("%s: %s\n", name, error);
    return;
  }
  u64 sum = 14695981039346656037u;
  for (const float x : out) sum = (sum ^ lab::float_to_bits(x)) * 1099511628211u;
  std::printf("%s %016llx\n", name, static_cast<unsigned long long>(sum));
}

// Pairs of 16-bit floats between 1/2 and 2, of both signs.
std::vector<unsigned> numbers(int n, unsigned exponents) {
  std::vector<unsigned> found(n);
  unsigned x = 1;
  for (unsigned& value : found) {
    x = x * 1664525u + 1013904223u;
    value = (x & 0x80ff80ffu) | exponents;
  }
  return found;
}
}  // namespace

int main() {
  const int steps = 5;
  const auto bf16 = numbers(steps * 4 * 32 * 4, 0x3f003f00u), f16 = numbers(1024, 0x38003800u);
  std::vector<float> sums(4 * 128), product(64 * 64);
  using Pipeline = pipeline::Params;
  run<Pipeline, pipeline::sum_products<pipeline::Omit::nothing>>(
      "pipeline", {reinterpret_cast<const lab::u32x4*>(bf16.data()), sums.data(), steps}, bf16,
      sums, 4, sizeof(pipeline::Smem));
  run<warpgroup::Params, warpgroup::multiply>("warpgroup", {f16.data(), product.data(), 0}, f16,
                                              product, 1, sizeof(warpgroup::Smem));
}

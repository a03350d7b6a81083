// These are the parts of the C and C++ libraries that the machine needs, so that no library has to
// be compiled with it.
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

namespace {

using u64 = std::uint64_t;
constexpr std::size_t page_bytes = 64 * 1024, header_bytes = 16, n_classes = 32;

// Blocks have 2^n bytes. A freed block is the next block that malloc returns for its size.
struct Block { Block* next; };
Block* free_blocks[n_classes];
extern "C" char __heap_base;
char* heap_end = &__heap_base;

char* more(std::size_t bytes, std::size_t alignment) {
  const auto begin = (reinterpret_cast<std::size_t>(heap_end) + alignment - 1) & ~(alignment - 1);
  const std::size_t end = begin + bytes, have = __builtin_wasm_memory_size(0) * page_bytes;
  if (end > have && __builtin_wasm_memory_grow(0, (end - have + page_bytes - 1) / page_bytes) ==
                        static_cast<std::size_t>(-1))
    __builtin_trap();
  heap_end = reinterpret_cast<char*>(end);
  return reinterpret_cast<char*>(begin);
}

}  // namespace

extern "C" {

void* malloc(std::size_t bytes) {
  const int n = std::bit_width(bytes + header_bytes - 1);
  Block* block = free_blocks[n];
  if (block != nullptr) {
    free_blocks[n] = block->next;
    return block;
  }
  char* begin = more(std::size_t{1} << n, header_bytes);
  *reinterpret_cast<int*>(begin) = n;
  return begin + header_bytes;
}
void free(void* p) {
  if (p == nullptr) return;
  const int n = *reinterpret_cast<int*>(static_cast<char*>(p) - header_bytes);
  auto* block = static_cast<Block*>(p);
  block->next = free_blocks[n];
  free_blocks[n] = block;
}
void* calloc(std::size_t n, std::size_t bytes) {
  void* p = malloc(n * bytes);
  return __builtin_memset(p, 0, n * bytes);
}
// This memory is never freed.
void* aligned_alloc(std::size_t alignment, std::size_t bytes) { return more(bytes, alignment); }

void* memcpy(void* dst, const void* src, std::size_t n) {
  return __builtin_memcpy(dst, src, n);  // becomes one instruction
}
int memcmp(const void* a, const void* b, std::size_t n) {
  const auto* x = static_cast<const unsigned char*>(a);
  const auto* y = static_cast<const unsigned char*>(b);
  for (std::size_t i = 0; i < n; ++i)
    if (x[i] != y[i]) return x[i] - y[i];
  return 0;
}
std::size_t strlen(const char* s) {
  std::size_t n = 0;
  while (s[n] != 0) ++n;
  return n;
}

// The product is exact in double. The sum is rounded to odd, so that rounding it to float
// gives the same as rounding the exact sum.
float fmaf(float x, float y, float z) {
  const double a = static_cast<double>(x) * y, b = z, sum = a + b;
  const double from_b = sum - a, error = (a - (sum - from_b)) + (b - from_b);
  u64 bits = std::bit_cast<u64>(sum);
  if ((error < 0 || error > 0) && (bits & 1) == 0) bits += (error > 0) == (sum > 0) ? 1 : -1;
  return static_cast<float>(std::bit_cast<double>(bits));
}
double ldexp(double x, int n) {
  const auto power = [](int k) { return std::bit_cast<double>(static_cast<u64>(1023 + k) << 52); };
  for (; n > 1023; n -= 1023) x *= power(1023);
  for (; n < -1022; n += 969) x *= power(-969);  // 53 bits stay above the subnormals
  return x * power(n);
}

}  // extern "C"

void* operator new(std::size_t bytes) { return malloc(bytes); }
void operator delete(void* p) noexcept { free(p); }
void operator delete(void* p, std::size_t) noexcept { free(p); }

_LIBCPP_BEGIN_NAMESPACE_STD

[[noreturn]] void __libcpp_verbose_abort(const char*, ...) noexcept { __builtin_trap(); }

// This is the hash for unordered_map, whose order affects no result.
size_t __next_prime(size_t n) {
  const auto is_prime = [](size_t k) {
    for (size_t d = 3; d * d <= k; d += 2)
      if (k % d == 0) return false;
    return true;
  };
  if (n <= 2) return n;
  for (n |= 1; !is_prime(n);) n += 2;
  return n;
}
size_t __hash_memory(_LIBCPP_NOESCAPE const void* p, size_t n) noexcept {
  size_t hash = 2166136261;  // FNV-1a
  for (size_t i = 0; i < n; ++i) hash = (hash ^ static_cast<const unsigned char*>(p)[i]) * 16777619;
  return hash;
}

template class basic_string<char>;
template string operator+(const char*, const string&);

static string digits(unsigned long long value, bool negative) {
  string text;
  do {
    text.insert(text.begin(), static_cast<char>('0' + value % 10));
    value /= 10;
  } while (value != 0);
  return negative ? "-" + text : text;
}
string to_string(unsigned long long v) { return digits(v, false); }
string to_string(long long v) {
  return digits(v < 0 ? 0ull - static_cast<unsigned long long>(v) : v, v < 0);
}
string to_string(unsigned long v) { return digits(v, false); }
string to_string(unsigned v) { return digits(v, false); }
string to_string(long v) { return to_string(static_cast<long long>(v)); }
string to_string(int v) { return to_string(static_cast<long long>(v)); }

_LIBCPP_END_NAMESPACE_STD

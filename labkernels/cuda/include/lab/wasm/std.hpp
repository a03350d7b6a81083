// A kernel needs this much of the C++ library. A page compiles kernels with these few lines, since
// the whole library takes longer to read than a kernel takes to compile.
#pragma once

namespace std {

using size_t = decltype(sizeof(0));
using ptrdiff_t = __PTRDIFF_TYPE__;
using uint16_t = unsigned short;
using uint32_t = unsigned;
using uint64_t = unsigned long long;

template <class A, class B> inline constexpr bool is_same_v = __is_same(A, B);
template <class To, class From> constexpr To bit_cast(const From& from) {
  return __builtin_bit_cast(To, from);
}
inline void* memcpy(void* to, const void* from, size_t n) { return __builtin_memcpy(to, from, n); }

// The machine, which has the whole library, knows it by this name.
inline namespace __1 {

class source_location {
  struct __impl {  // the compiler knows these names
    const char* _M_file_name;
    const char* _M_function_name;
    unsigned _M_line, _M_column;
  };
  const __impl* place_ = nullptr;

 public:
  static consteval source_location current(
      decltype(__builtin_source_location()) place = __builtin_source_location()) noexcept {
    source_location made;
    made.place_ = static_cast<const __impl*>(place);
    return made;
  }
  constexpr unsigned line() const noexcept { return place_->_M_line; }
  constexpr unsigned column() const noexcept { return place_->_M_column; }
  constexpr const char* file_name() const noexcept { return place_->_M_file_name; }
};

}  // namespace __1
}  // namespace std

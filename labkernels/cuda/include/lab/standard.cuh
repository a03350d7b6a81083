// These are the words of standard CUDA for a kernel of a beginner. Each stands for a word of the
// lab, so that the same text runs on the CPU machine, with its checks, and on a GPU. The text of a
// launch (chapters/primers/first_kernel/standard_cuda.py) includes this file, and gives `grid_size`
// and `block_size`.
#pragma once
#include "lab/core/ptx.cuh"

namespace lab::standard {

struct Size { int x, y, z; };

// Static shared memory is at most 48 KiB. The array begins at a byte of the block's shared memory.
template <class T, unsigned long long at> LAB_DEVICE T& block_array() {
  static_assert(at + sizeof(T) <= 48 * 1024, "__shared__ arrays take more than 48 KiB");
  return reinterpret_cast<T&>((&shared_memory<unsigned char>())[at]);
}

// This is one access of a thread to global memory. standard_cuda.py reads it, with this layout.
struct Access {
  u64 address;
  int block, thread, line;
  short bytes, writes;
};

#if !defined(__CUDACC__) && !defined(__CUDACC_RTC__)

struct Log {
  Access* first;
  i64* length;
  int room;  // 0: nothing is noted
};
inline Log the_log;
LAB_DEVICE void listen(Access* first, i64* length, int room) { the_log = {first, length, room}; }

template <class T> LAB_WORD void note(const T* p, bool writes, host::Where here) {
  const i64 n = the_log.room > 0 ? (*the_log.length)++ : 0;
  if (n < the_log.room)
    the_log.first[n] = {reinterpret_cast<u64>(p), block_x(),        thread_x(),
                        int(here.line()),         short(sizeof(T)), writes};
}
template <class T> LAB_WORD T read(const T* p, host::Where here) {
  host::check_global(p, sizeof(T), alignof(T), host::Access::read, host::Word::load_global, here);
  note(p, false, here);
  return *p;
}
template <class T> LAB_WORD void write(T* p, T value, host::Where here) {
  host::check_global(p, sizeof(T), alignof(T), host::Access::write, host::Word::store_global, here);
  note(p, true, here);
  *p = value;
}

// An index knows the line on which it stands.
struct Index {
  i64 value;
  host::Where here;
  template <class I> Index(I i, LAB_HERE) : value(i), here(here) {}
};
template <class T> struct Element {
  T* p;
  host::Where here;
  LAB_DEVICE operator T() const { return read(p, here); }
  LAB_DEVICE const Element& operator=(T value) const { return write(p, value, here), *this; }
  LAB_DEVICE const Element& operator=(const Element& other) const { return *this = T(other); }
  LAB_DEVICE const Element& operator+=(T value) const { return *this = T(*this) + value; }
  LAB_DEVICE const Element& operator*=(T value) const { return *this = T(*this) * value; }
};
template <class T> struct Element<const T> {
  const T* p;
  host::Where here;
  LAB_DEVICE operator T() const { return read(p, here); }
};
// A pointer to global memory whose accesses are checked.
template <class T> struct Global {
  T* p;
  LAB_DEVICE Global(T* p) : p(p) {}
  LAB_DEVICE Element<T> operator[](Index i) const { return {p + i.value, i.here}; }
  LAB_DEVICE Element<T> operator*() const = delete;  // write p[0]
  LAB_DEVICE Global operator+(i64 n) const { return {p + n}; }
};

LAB_DEVICE float shfl_down(float v, int distance, LAB_HERE) {
  const int lane = thread_x() % 32 + distance;
  return shfl(v, lane < 32 ? lane : lane - distance, here);
}

#define __syncthreads() ::lab::sync_block()
#define __syncwarp() ::lab::sync_warp()
#define __shfl_xor_sync(lanes, v, mask) ::lab::shfl_xor(v, mask)
#define __shfl_down_sync(lanes, v, distance) ::lab::standard::shfl_down(v, distance)
#define exp2f(x) ::lab::ex2_approx(x)
#define fmaxf(a, b) ::lab::maximum(a, b)

#else

template <class T> using Global = T*;
LAB_DEVICE void listen(Access*, i64*, int) {}

#endif

// The lab launches blocks of one dimension; x is the fastest of the three.
LAB_DEVICE Size thread_place(Size block) {
  const int t = thread_x();
  return {t % block.x, t / block.x % block.y, t / (block.x * block.y)};
}
LAB_DEVICE Size block_place() { return {block_x(), block_y(), block_z()}; }

#define threadIdx (::lab::standard::thread_place(::lab::standard::block_size))
#define blockIdx (::lab::standard::block_place())
#define blockDim (::lab::standard::block_size)
#define gridDim (::lab::standard::grid_size)

}  // namespace lab::standard

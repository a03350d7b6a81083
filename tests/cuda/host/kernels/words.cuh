// Small kernels, each of which calls a few words, the functions of the lab's vocabulary.
#pragma once
#include "lab/ampere/shared_tile.cuh"

namespace words {
using namespace lab;

struct Params {
  const void* in;
  void* out;
  int n;
};

template <class T> LAB_DEVICE T in(const Params& p, int i) {
  return load_constant(static_cast<const T*>(p.in) + i);
}
template <class T> LAB_DEVICE void out(const Params& p, int i, T value) {
  store_global(static_cast<T*>(p.out) + i, value);
}
LAB_DEVICE int index() { return block_x() * 128 + thread_x(); }

LAB_KERNEL(64, 1) place(LAB_GRID_CONSTANT Params p) {
  allow_next_launch();
  wait_previous_launch();
  const int block = (block_z() * 3 + block_y()) * 2 + block_x();
  out(p, block * 64 + thread_x(), thread_x() + 100 * block);
}

LAB_KERNEL(64, 1) exchange(LAB_GRID_CONSTANT Params p) {
  const int t = thread_x(), lane = t & 31;
  const float v = static_cast<float>(t);
  out(p, t * 5, static_cast<int>(shfl(v, lane * 5 + 3)));
  out(p, t * 5 + 1, static_cast<int>(shfl_xor(v, 9)));
  const i64 wide = shfl(static_cast<i64>(t) << 40, 31 - lane);
  out(p, t * 5 + 2, static_cast<int>(wide >> 40));
  out(p, t * 5 + 3, warp_any(t == 40) ? 1 : 0);
  out(p, t * 5 + 4, static_cast<int>(shfl_octet(0xfffffff0u + t, lane * 3 + 9)));
}

// The matrices' 32 rows of 16 bytes go through shared memory, named by pointers or by addresses.
template <bool Trans, bool Addresses> LAB_KERNEL(32, 1) matrices(LAB_GRID_CONSTANT Params p) {
  auto& rows = shared_memory<u32x4[32]>();
  const int lane = thread_x();
  const u32 address = shared_address(&rows[lane]);
  const u32x4* source = static_cast<const u32x4*>(p.in) + lane;
  if constexpr (Addresses) cp_async_16(address, source, true);
  else cp_async_16(&rows[lane], source, true);
  cp_async_commit();
  cp_async_wait<0>();
  sync_warp();
  u32 r[4];
  if constexpr (Trans && Addresses) ldmatrix_x4_trans(r, address);
  else if constexpr (Trans) ldmatrix_x4_trans(r, &rows[lane]);
  else if constexpr (Addresses) ldmatrix_x4(r, address);
  else ldmatrix_x4(r, &rows[lane]);
  for (int i = 0; i < 4; ++i) out(p, lane * 4 + i, r[i]);
}

// For each chunk of 32 rows: its address, and the errors of two other ways to compute it.
template <int D> LAB_KERNEL(32, 1) addresses(LAB_GRID_CONSTANT Params p) {
  constexpr int chunks = D / chunk_elements;
  auto& tile = shared_memory<u16[32][D]>();
  const int row = thread_x();
  for (int c = 0; c < chunks; ++c) {
    const u32 address = shared_address(chunk<D>(tile, row, c));
    const u32 near = other_chunk(chunk_address<D>(tile, row, c & 1), c & ~1);
    const u32 above = chunk_address<D>(tile, row & 7, c) + (row & ~7) * D * sizeof(u16);
    out(p, (row * chunks + c) * 3, address);
    out(p, (row * chunks + c) * 3 + 1, near - address);
    out(p, (row * chunks + c) * 3 + 2, above - address);
  }
}

// Four registers per lane go through shared memory, as stmatrix stores them.
LAB_KERNEL(32, 1) matrices_back(LAB_GRID_CONSTANT Params p) {
  auto& rows = shared_memory<u32x4[32]>();
  const int lane = thread_x();
  u32 r[4];
  for (int i = 0; i < 4; ++i) r[i] = in<u32>(p, lane * 4 + i);
  stmatrix_x4(shared_address(&rows[lane ^ 5]), r);
  sync_warp();
  const u32x4 row = rows[lane];
  for (int i = 0; i < 4; ++i) out(p, lane * 4 + i, row.v[i]);
}

LAB_KERNEL(32, 1) transpose(LAB_GRID_CONSTANT Params p) {
  out(p, thread_x(), movmatrix_trans(in<u32>(p, thread_x())));
}

// One tile per block; each lane holds 4 registers of a, 2 of b and 4 of c.
template <class T> LAB_KERNEL(32, 1) mma(LAB_GRID_CONSTANT Params p) {
  const int i = block_x() * 32 + thread_x();
  u32 a[4];
  float d[4];
  for (int j = 0; j < 4; ++j) a[j] = in<u32>(p, i * 10 + j);
  for (int j = 0; j < 4; ++j) d[j] = in<float>(p, i * 10 + 6 + j);
  mma_m16n8k16<T>(d, a, in<u32>(p, i * 10 + 4), in<u32>(p, i * 10 + 5));
  for (int j = 0; j < 4; ++j) out(p, i * 4 + j, d[j]);
}

// x -> from_float(x), pack2(x, -x)
template <class T> LAB_KERNEL(128, 1) round(LAB_GRID_CONSTANT Params p) {
  const int i = index();
  if (i >= p.n) return;
  const float x = in<float>(p, i);
  out(p, i * 2, static_cast<u32>(from_float<T>(x).bits));
  out(p, i * 2 + 1, pack2<T>(x, -x));
}

template <class T> LAB_KERNEL(128, 1) unpack(LAB_GRID_CONSTANT Params p) {
  const int i = index();
  if (i >= p.n) return;
  const f32x2 pair = unpack2<T>(in<u32>(p, i));
  out(p, i * 2, pair.x);
  out(p, i * 2 + 1, pair.y);
}

LAB_KERNEL(128, 1) arithmetic(LAB_GRID_CONSTANT Params p) {
  const int i = index();
  if (i >= p.n) return;
  const float a = in<float>(p, i * 3), b = in<float>(p, i * 3 + 1), c = in<float>(p, i * 3 + 2);
  out(p, i * 4, fma_rn(a, b, c));
  out(p, i * 4 + 1, a * b + c);  // not fused
  out(p, i * 4 + 2, div_rn(a, b));
  out(p, i * 4 + 3, bits_to_float(float_to_bits(maximum(a, b))));
}

LAB_KERNEL(128, 1) exp2(LAB_GRID_CONSTANT Params p) {
  const int i = index();
  if (i < p.n) out(p, i, ex2_approx(in<float>(p, i)));
}

// out[0] counts the blocks; each block writes its number, four times, at the place of its ticket.
LAB_KERNEL(32, 1) tickets(LAB_GRID_CONSTANT Params p) {
  if (thread_x() != 0) return;
  auto* counter = static_cast<int*>(p.out);
  fence_global();
  const int ticket = atomic_add_global(counter, 1);
  fence_global();
  const float number = static_cast<float>(block_x());
  store_global(static_cast<f32x4*>(p.out) + 1 + ticket, {{number, number, number, number}});
  const f32x4 back = load_global(static_cast<const f32x4*>(p.out) + 1 + ticket);
  if (back.v[3] != number) store_global(counter, -1000);
}

// Each thread adds its four floats to four that threads of the other blocks also add to.
LAB_KERNEL(32, 1) additions(LAB_GRID_CONSTANT Params p) {
  const f32x4 x = load_global(static_cast<const f32x4*>(p.in) + block_x() * 32 + thread_x());
  add_global(static_cast<float*>(p.out) + thread_x() * 4, x.v);
}

// Reads shared memory before any write, while a copy is in flight, and after copies and zeros.
LAB_KERNEL(32, 1) copies(LAB_GRID_CONSTANT Params p) {
  auto& rows = shared_memory<u32x4[2][32]>();
  const int lane = thread_x();
  out(p, lane * 5, rows[0][lane].v[0]);
  out(p, lane * 5 + 1, shared_address(&rows[1][lane]) - shared_address(&rows[0][0]));
  rows[0][lane].v[0] = 7;
  cp_async_16(&rows[0][lane], static_cast<const u32x4*>(p.in) + lane, true);
  cp_async_commit();
  cp_async_16(&rows[1][lane], nullptr, false);
  cp_async_commit();
  out(p, lane * 5 + 2, rows[0][lane].v[0]);
  cp_async_wait<1>();
  out(p, lane * 5 + 3, rows[0][lane].v[0]);
  cp_async_wait<0>();
  out(p, lane * 5 + 4, rows[1][lane].v[3]);
}

}  // namespace words

// A consumer warpgroup's registers: its scores, their softmax, the output and the way out.
#pragma once
#include "prefill_wgmma/tile.cuh"

namespace prefill_wgmma {
using namespace lab;

// The maximum before the first key. Below it no score is finite, and exp2(-inf - least) is 0 where
// exp2(-inf + inf) is NaN.
LAB_DEVICE float least_score() { return bits_to_float(0xff7fffffu); }

// Index r: of rows g and g + 8 of the warp.
template <class C> struct State {
  float m[2], l[2];                              // l: this lane's columns only
  float o[C::dim_vo / 2];
};
template <class C> using Scores = float[C::keys / 2];
template <class C> using Probabilities = u32[C::keys / 16][4];

LAB_DEVICE int lane_row(int warpgroup) {
  return warpgroup * 64 + thread_x() / 32 % 4 * 16 + (thread_x() & 31) / 4;
}

// That of the tile so many bytes further on.
LAB_DEVICE u64 descriptor_at(u64 descriptor, int bytes) { return descriptor + (bytes >> 4); }

// S = Q K^T is under way.
template <class C>
LAB_DEVICE void begin_scores(Scores<C>& s, const Smem<C>& smem, int warpgroup, int i, int n) {
  const u64 q = wgmma_descriptor(smem.q[stage_of<C::q_stages>(i)][0][warpgroup * 64], 16, 1024,
                                 Swizzle::b128);
  const u64 k = wgmma_descriptor(smem.k[stage_of<C::stages>(n)], 16, 1024, Swizzle::b128);
  wgmma_fence();
#pragma unroll
  for (int d = 0; d < C::dim_qk; d += 16) {
    const int c = d / channels, within = d % channels * 2;
    wgmma<typename C::T>(s, descriptor_at(q, c * C::rows * 128 + within),
                         descriptor_at(k, c * C::keys * 128 + within), d > 0);
  }
  wgmma_commit();
}

// O += P V is under way.
template <class C>
LAB_DEVICE void begin_output(float (&o)[C::dim_vo / 2], const Probabilities<C>& p,
                             const Smem<C>& smem, int n) {
  const u64 v =
      wgmma_descriptor(smem.v[stage_of<C::stages>(n)], C::keys * 128, 1024, Swizzle::b128);
  wgmma_fence();
#pragma unroll
  for (int b = 0; b < C::keys / 16; ++b)
    wgmma<typename C::T, Major::mn>(o, p[b], descriptor_at(v, b * 16 * 128));
  wgmma_commit();
}

// The keys that a row does not see. Only steps at the boundary come here.
template <class C>
LAB_DEVICE void mask(Scores<C>& s, const PrefillParams& p, const typename C::Block& b, int row,
                     int key) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int column = key + (thread_x() & 3) * 2, first = b.first_key - column;
    const int seen = least(row_limit(p, b, row + 8 * r), b.end_key) - column;
#pragma unroll
    for (int j = 0; j < C::keys / 8; ++j)
#pragma unroll
      for (int i = 0; i < 2; ++i)
        if (j * 8 + i >= seen || j * 8 + i < first) s[4 * j + 2 * r + i] = minus_infinity();
  }
}

// Moves the maxima to those of the scores, rescales l to them, and turns the scores into P.
template <class C, class P>
LAB_DEVICE void update(State<C>& state, float (&rescale)[2], Scores<C>& s, float scale_log2) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float top = maximum(s[2 * r], s[2 * r + 1]);
#pragma unroll
    for (int j = 1; j < C::keys / 8; ++j)
      top = maximum(top, maximum(s[4 * j + 2 * r], s[4 * j + 2 * r + 1]));
    top = maximum(top, shfl_xor(top, 1));
    top = maximum(top, shfl_xor(top, 2));
    const float moved = maximum(state.m[r], top * scale_log2);
    rescale[r] = exp2<P>(state.m[r] - moved);
    state.m[r] = moved;
    state.l[r] = state.l[r] * rescale[r];
  }
#pragma unroll
  for (int j = 0; j < C::keys / 8; ++j)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float e = exp2<P>(fma_rn(s[4 * j + i], scale_log2, -state.m[i / 2]));
      if constexpr (P::denominator == Denominator::rounded) e = rounded<typename C::T>(e);
      state.l[i / 2] = state.l[i / 2] + e;
      s[4 * j + i] = e;
    }
}

// P rounded: the accumulator's registers are already the A fragments of the next product.
template <class C> LAB_DEVICE void round_scores(Probabilities<C>& p, const Scores<C>& s) {
#pragma unroll
  for (int b = 0; b < C::keys / 16; ++b)
#pragma unroll
    for (int i = 0; i < 4; ++i)
      p[b][i] = pack2<typename C::T>(s[8 * b + 2 * i], s[8 * b + 2 * i + 1]);
}

template <class C>
LAB_DEVICE void rescale_output(State<C>& state, const float (&rescale)[2]) {
  // times 1 changes no bit: skip it
  if (!warp_any(!(rescale[0] == 1.f && rescale[1] == 1.f))) return;
#pragma unroll
  for (int i = 0; i < C::dim_vo / 2; ++i) state.o[i] = state.o[i] * rescale[i / 2 % 2];
}

// Lane t of a quad has four words of its own; gets word t of each of the four.
LAB_DEVICE void transpose_quad(u32 (&w)[4]) {
  const int lane = thread_x();
#pragma unroll
  for (int bit = 1; bit < 4; bit *= 2)
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int low = bit == 1 ? 2 * i : i, high = low + bit;
      const bool upper = lane & bit;
      const u32 got = float_to_bits(shfl_xor(bits_to_float(upper ? w[low] : w[high]), bit));
      if (upper) w[low] = got;
      else w[high] = got;
    }
}

// A lane's channels of a row: eight at a time of a 16-bit output, which its quad has put together.
template <class C, class Out>
LAB_DEVICE void store_row(Out* out, const float (&o)[C::dim_vo / 2], int r, float factor,
                          bool real) {
  const int t = thread_x() & 3;
  if constexpr (sizeof(Out) == 2) {
#pragma unroll
    for (int n = 0; n < C::dim_vo / 8; n += 4) {
      u32x4 words;
#pragma unroll
      for (int i = 0; i < 4; ++i)
        words.v[i] =
            pack2<Out>(o[4 * (n + i) + 2 * r] * factor, o[4 * (n + i) + 2 * r + 1] * factor);
      transpose_quad(words.v);
      if (real) store_global(reinterpret_cast<u32x4*>(out + (n + t) * 8), words);
    }
  } else {
#pragma unroll
    for (int n = 0; n < C::dim_vo / 8; ++n)
      if (real)
        store2(out + n * 8 + 2 * t, o[4 * n + 2 * r] * factor, o[4 * n + 2 * r + 1] * factor);
  }
}

// Divides the thread's rows by l and writes them, or writes the split's partial States of them.
template <class C, class P>
LAB_DEVICE void store(const State<C>& state, const PrefillParams& p, const typename C::Block& b,
                      int row) {
  using Out = typename P::Out;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float l = state.l[r];
    l = l + shfl_xor(l, 1);
    l = l + shfl_xor(l, 2);
    const bool real = row + 8 * r < b.n_rows, speaks = real && (thread_x() & 3) == 0;
    const i64 head = head_index(p, b, row + 8 * r), slot = head * p.splits + b.split;
    if (b.live_splits <= 1) {
      const float factor = l == 0.f ? 0.f : div_rn(1.f, l);
      store_row<C>(static_cast<Out*>(p.out) + head * C::dim_vo, state.o, r, factor, real);
      if (speaks) store_lse2(p, head, state.m[r], l);
    } else {
      store_row<C>(p.partial_o + slot * C::dim_vo, state.o, r, 1.f, real);
      if (speaks) store_global(p.partial_m + slot, state.m[r]);
      if (speaks) store_global(p.partial_l + slot, l);
    }
  }
}

// A warp is done with what the barrier guards.
LAB_DEVICE void release(Barrier& b) {
  sync_warp();
  if ((thread_x() & 31) == 0) barrier_arrive(b);
}

// The warpgroups take turns to give the tensor cores work.
template <class C> LAB_DEVICE void wait_turn(int warpgroup) {
  if constexpr (C::overlap == Overlap::between) named_sync(1 + warpgroup, 256);
}
template <class C> LAB_DEVICE void pass_turn(int warpgroup) {
  if constexpr (C::overlap == Overlap::between)
    named_arrive(1 + (warpgroup + 1) % C::consumers, 256);
}

}  // namespace prefill_wgmma

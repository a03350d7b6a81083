// A consumer warpgroup's registers: its scores, their softmax, the output and the way out.
#pragma once
#include "prefill_wgmma/tile.cuh"

namespace prefill_wgmma {
using namespace lab;

// The maximum before the first key. Below it no score is finite, and exp2(-inf - least) is 0 where
// exp2(-inf + inf) is NaN.
LAB_DEVICE float least_score() { return bits_to_float(0xff7fffffu); }

// Index r: of rows g and g + 8 of the warp.
struct Softmax {
  float m[2], l[2];                              // l: this lane's columns only
  float rescale[2];                              // what O becomes by the last step's maxima
};
template <class C> using Output = float[C::dim_vo / 2];
template <class C> using Scores = float[C::keys / 2];
template <class C> using Probabilities = u32[C::keys / 16][4];

LAB_DEVICE void open_rows(Softmax& rows) {
  for (int r = 0; r < 2; ++r) { rows.m[r] = least_score(); rows.l[r] = 0.f; }
}
template <class C> LAB_DEVICE void clear(Output<C>& o) {
#pragma unroll
  for (int i = 0; i < C::dim_vo / 2; ++i) o[i] = 0.f;
}

LAB_DEVICE int lane_row(int warpgroup) {
  return warpgroup * 64 + thread_x() / 32 % 4 * 16 + (thread_x() & 31) / 4;
}

// That of the tile so many bytes further on.
LAB_DEVICE u64 descriptor_at(u64 descriptor, int bytes) { return descriptor + (bytes >> 4); }

// S = Q K^T is under way.
template <class C>
LAB_DEVICE void begin_scores(Scores<C>& s, const Smem<C>& smem, int warpgroup, int i, int n) {
  const u64 q = descriptor_at(
      wgmma_descriptor(smem.q[0][0][warpgroup * 64], 16, 1024, Swizzle::b128),
      stage_of<C::q_stages>(i) * static_cast<int>(sizeof(smem.q[0])));
  using Tile = KeyTile<C, C::dim_qk>;
  const u64 k =
      descriptor_at(wgmma_descriptor(smem.k[0].at, 16, Tile::next_octet * 2, Swizzle::b128),
                    stage_of<C::stages>(n) * static_cast<int>(sizeof(Tile)));
  wgmma_fence();
#pragma unroll
  for (int d = 0; d < C::dim_qk; d += 16) {
    const int c = d / channels, within = d % channels * 2;
    wgmma<typename C::T>(s, descriptor_at(q, c * C::rows * 128 + within),
                         descriptor_at(k, c * Tile::next_line * 2 + within), d > 0);
  }
  wgmma_commit();
}

// O += P V is under way.
template <class C>
LAB_DEVICE void begin_output(Output<C>& o, const Probabilities<C>& p,
                             const Smem<C>& smem, int n) {
  using Tile = KeyTile<C, C::dim_vo>;
  const u64 v = descriptor_at(wgmma_descriptor(smem.v[0].at, Tile::next_line * 2,
                                               Tile::next_octet * 2, Swizzle::b128),
                              stage_of<C::stages>(n) * static_cast<int>(sizeof(Tile)));
  wgmma_fence();
#pragma unroll
  for (int b = 0; b < C::keys / 16; ++b)
    wgmma<typename C::T, Major::mn>(o, p[b], descriptor_at(v, b * 2 * Tile::next_octet * 2));
  wgmma_commit();
}

// The keys that a row does not see yet, or that another split has. Only steps at the boundaries
// come here.
template <class C>
LAB_DEVICE void mask_future(Scores<C>& s, const PrefillParams& p, const typename C::Block& b,
                            int row, int key) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int seen =
        least(row_limit(p, b, row + 8 * r), b.end_key) - key - (thread_x() & 3) * 2;
#pragma unroll
    for (int j = 0; j < C::keys / 8; ++j)
#pragma unroll
      for (int i = 0; i < 2; ++i)
        if (j * 8 + i >= seen) s[4 * j + 2 * r + i] = minus_infinity();
  }
}
template <class C> LAB_DEVICE void mask_past(Scores<C>& s, int keys) {
#pragma unroll
  for (int j = 0; j < C::keys / 8; ++j)
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (j * 8 + (thread_x() & 3) * 2 + i % 2 < keys) s[4 * j + i] = minus_infinity();
}

// Moves the maxima to those of the scores, rescales l to them, and turns the scores into P. A
// row after the other, which ptxas orders better than a pass over both for each of the three.
template <class C, class P>
LAB_DEVICE void update(Softmax& rows, Scores<C>& s, float scale_log2) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float top = maximum(s[2 * r], s[2 * r + 1]);
#pragma unroll
    for (int j = 1; j < C::keys / 8; ++j)
      top = maximum(top, maximum(s[4 * j + 2 * r], s[4 * j + 2 * r + 1]));
    top = maximum(top, shfl_xor(top, 1));
    top = maximum(top, shfl_xor(top, 2));
    const float moved = maximum(rows.m[r], top * scale_log2);
    rows.rescale[r] = exp2<P>(rows.m[r] - moved);
    rows.m[r] = moved;
    rows.l[r] = rows.l[r] * rows.rescale[r];
#pragma unroll
    for (int j = 0; j < C::keys / 8; ++j)
#pragma unroll
      for (int i = 2 * r; i < 2 * r + 2; ++i) {
        float e = exp2<P>(fma_rn(s[4 * j + i], scale_log2, -moved));
        if constexpr (P::denominator == Denominator::rounded) e = rounded<typename C::T>(e);
        rows.l[r] = rows.l[r] + e;
        s[4 * j + i] = e;
      }
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

template <class C> LAB_DEVICE void rescale_output(Output<C>& o, const Softmax& rows) {
  // times 1 changes no bit: skip it
  if (!warp_any(!(rows.rescale[0] == 1.f && rows.rescale[1] == 1.f))) return;
#pragma unroll
  for (int i = 0; i < C::dim_vo / 2; ++i) o[i] = o[i] * rows.rescale[i / 2 % 2];
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
LAB_DEVICE void store_row(Out* out, const Output<C>& o, int r, float factor, bool real) {
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

// A quad's even lanes speak for row g, its odd ones for row g + 8.
LAB_DEVICE float own(float even, float odd) { return thread_x() & 1 ? odd : even; }

// Writes the lse of a row, or the split's partial m and l of it. Returns the factor that turns o
// into what is written of it.
template <class C, class P>
LAB_DEVICE float close_rows(const Softmax& rows, const PrefillParams& p,
                            const typename C::Block& b, int row) {
  float l = own(rows.l[0], rows.l[1]) + shfl_xor(own(rows.l[1], rows.l[0]), 1);
  l = l + shfl_xor(l, 2);
  const float m = own(rows.m[0], rows.m[1]);
  const bool whole = b.live_splits <= 1;
  const int own_row = row + 8 * (thread_x() & 1);
  if (own_row < b.n_rows && !(thread_x() & 2)) {
    const i64 head = head_index(p, b, own_row), slot = head * p.splits + b.split;
    if (whole) {
      store_lse2(p, head, m, l);
    } else {
      store_global(p.partial_m + slot, m);
      store_global(p.partial_l + slot, l);
    }
  }
  return !whole ? 1.f : l == 0.f ? 0.f : div_rn(1.f, l);
}

// Writes the thread's rows of O, or of the split's partial o.
template <class C, class P>
LAB_DEVICE void store(const Output<C>& o, float factor, const PrefillParams& p,
                      const typename C::Block& b, int row) {
  using Out = typename P::Out;
  const float others = shfl_xor(factor, 1);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float by = (thread_x() & 1) == r ? factor : others;
    const bool real = row + 8 * r < b.n_rows;
    const i64 head = head_index(p, b, row + 8 * r), slot = head * p.splits + b.split;
    if (b.live_splits <= 1)
      store_row<C>(static_cast<Out*>(p.out) + head * C::dim_vo, o, r, by, real);
    else
      store_row<C>(p.partial_o + slot * C::dim_vo, o, r, 1.f, real);
  }
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

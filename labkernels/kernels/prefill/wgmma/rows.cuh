// This file says which keys a consumer warpgroup's rows see, and stores the rows.
#pragma once
#include "lab/core/warp.cuh"
#include "prefill/warpgroup_rows.cuh"
#include "prefill/wgmma/tile.cuh"

namespace prefill_wgmma {
using namespace lab;

template <class C> using Output = float[C::dim_vo / 2];  // [64 rows of a warpgroup, dim_vo]
template <class C> using Scores = float[C::keys / 2];    // [64 rows, keys of a block]
// P, rounded: [64 rows, keys]
template <class C> using Fragments = u32[C::keys / (C::v_is_transposed ? 32 : 16)][4];

// With promotion, the tensor cores sum the products of a block of keys, and fp32 additions to
// nearest join the sums. Without promotion, the tensor cores add to O.
template <class C> struct Promoted { Output<C> total, products; };
template <class C, class P> struct SumsFor { using type = Output<C>; };
template <class C, class P>
  requires (C::codes && P::promoted)
struct SumsFor<C, P> {
  using type = Promoted<C>;
};
template <class C, class P> using SumsOf = typename SumsFor<C, P>::type;

template <class Sums> LAB_DEVICE auto& total(Sums& o) {
  if constexpr (requires { o.total; }) return o.total;
  else return o;
}
template <class Sums> LAB_DEVICE auto& products(Sums& o) {
  if constexpr (requires { o.products; }) return o.products;
  else return o;
}
template <class Sums> LAB_DEVICE void join(Sums& o) {
  if constexpr (requires { o.total; })
#pragma unroll
    for (int n = 0; n < registers_of<decltype(o.total)>; ++n)
      o.total[n] = o.total[n] + o.products[n];
}

// Sets the scores of keys that a row does not see, or that a later split has, to -inf. Only blocks
// at the boundaries need this; `key` is the block's first key.
template <class C>
LAB_DEVICE void mask_future(Scores<C>& s, const typename C::Problem& p,
                            const typename C::Work& work, int row, int key) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int seen = least(row_limit<typename C::Variant>(p, work, row + 8 * r), work.end_key) -
                     key - (thread_x() & 3) * 2;
#pragma unroll
    for (int j = 0; j < C::keys / 8; ++j)
#pragma unroll
      for (int i = 0; i < 2; ++i)
        if (j * 8 + i >= seen) s[4 * j + 2 * r + i] = minus_infinity();
  }
}
// Does the same for the block's first `keys` keys, which belong to the split before.
template <class C> LAB_DEVICE void mask_past(Scores<C>& s, int keys) {
#pragma unroll
  for (int j = 0; j < C::keys / 8; ++j)
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (j * 8 + (thread_x() & 3) * 2 + i % 2 < keys) s[4 * j + i] = minus_infinity();
}
// Does the same for the keys of the split before and those before the window of each row.
template <class C>
LAB_DEVICE void mask_past(Scores<C>& s, const typename C::Problem& p, const typename C::Work& work,
                          int row, int key) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int begin = row_begin<typename C::Variant>(p, work, row + 8 * r);
    const int hidden = greatest(begin, work.first_key) - key - (thread_x() & 3) * 2;
#pragma unroll
    for (int j = 0; j < C::keys / 8; ++j)
#pragma unroll
      for (int i = 0; i < 2; ++i)
        if (j * 8 + i < hidden) s[4 * j + 2 * r + i] = minus_infinity();
  }
}

// Does the same for the keys of the block that a mask of bits hides.
template <class C>
LAB_DEVICE void mask_bits(Scores<C>& s, const typename C::Problem& p, const typename C::Work& work,
                          int row, int key) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    u32 bits[(C::keys + 31) / 32];  // [32 keys]
    load_bits(bits, p, work, row + 8 * r, key + (thread_x() & 3) * 2);
#pragma unroll
    for (int j = 0; j < C::keys / 8; ++j)
#pragma unroll
      for (int i = 0; i < 2; ++i)
        if (!(bits[j / 4] >> (j % 4 * 8 + i) & 1)) s[4 * j + 2 * r + i] = minus_infinity();
  }
}

// Stores a lane's channels of a row. For a 16-bit output the quad first gathers eight channels in
// each lane.
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
      quad_transpose(words.v);
      if (real && in_head<C::dim_vo>((n + t) * 8))
        store_global(reinterpret_cast<u32x4*>(out + (n + t) * 8), words);
    }
  } else {
#pragma unroll
    for (int n = 0; n < head_channels<C::dim_vo> / 8; ++n)
      if (real)
        store2(out + n * 8 + 2 * t, o[4 * n + 2 * r] * factor, o[4 * n + 2 * r + 1] * factor);
  }
}

// A lane owns one of its two rows: row g if the lane is even, and row g + 8 if the lane is odd.
LAB_DEVICE float own(float even, float odd) { return thread_x() & 1 ? odd : even; }

// Returns the factor for O of the lane's own row. One of the two lanes that own the row writes its
// lse2, or its split's partial m and l. This does what `reduce` and `finalize` do for both rows,
// with one division per thread.
template <class C, class P>
LAB_DEVICE float store_sums(const OnlineSoftmax& softmax, const PrefillParams& p,
                            const typename C::Work& work, int row) {
  float l = own(softmax.l[0], softmax.l[1]) + shfl_xor(own(softmax.l[1], softmax.l[0]), 1);
  l = l + shfl_xor(l, 2);
  const float m = own(softmax.m[0], softmax.m[1]);
  const bool whole = work.live_splits <= 1;
  const int own_row = row + 8 * (thread_x() & 1);
  if (own_row < work.n_rows && !(thread_x() & 2)) {
    const i64 head = head_index(p, work, own_row), slot = head * p.splits + work.split;
    if (whole) store_lse2(p, head, m, l);
    else store_partial(p, slot, m, l);
  }
  return whole ? inverse_of(l) : 1.f;
}

// Writes the thread's rows of O, or of the split's partial o. `factor` belongs to the lane's own
// row.
template <class C, class P>
LAB_DEVICE void store_rows(const Output<C>& o, float factor, const PrefillParams& p,
                           const typename C::Work& work, int row) {
  using Out = typename P::Out;
  constexpr int channels = head_channels<C::dim_vo>;
  const float others = shfl_xor(factor, 1);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float by = (thread_x() & 1) == r ? factor : others;
    const bool real = row + 8 * r < work.n_rows;
    const i64 head = head_index(p, work, row + 8 * r), slot = head * p.splits + work.split;
    if (work.live_splits <= 1)
      store_row<C>(static_cast<Out*>(p.out) + head * channels, o, r, by, real);
    else store_row<C>(p.partial_o + slot * channels, o, r, C::codes ? by : 1.f, real);
  }
}

}  // namespace prefill_wgmma

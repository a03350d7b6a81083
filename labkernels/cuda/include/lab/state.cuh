// The online-softmax State {m, l, o} of a row of scores: m the maximum in log2 units, l the sum of
// exp2(s - m), o the sum of exp2(s - m) v, not yet divided by l. No key: m = -inf, l = 0, o = 0.
// update folds scores in (each kernel has its own layout for it), merge joins two States, finalize
// divides. The same names in numerics/online_softmax.py.
#pragma once
#include "lab/paged_kv.cuh"
#include "lab/policy.cuh"

namespace lab {

// What every score of a row is shifted by before exp2. With no key yet it is 0, so that the masked
// scores of -inf give exp2(-inf) = 0 and not exp2(NaN).
LAB_DEVICE float shift_of(float m) { return m == minus_infinity() ? 0.f : m; }

// exp2(m_old - m_new): exactly 1 when the maximum has not moved.
template <class P> LAB_DEVICE float rescale_of(float m_old, float m_new) {
  return exp2<P>(m_old - shift_of(m_new));
}

// The States of a block's warps, side by side in shared memory.
template <int Warps, int Rows, int D> struct WarpStates {
  alignas(16) float o[Warps][Rows][D];
  float m[Warps][Rows], l[Warps][Rows];
};

template <class Out>
LAB_DEVICE void store_out(const DecodeParams& p, i64 row, int dim, int head_dim, float value) {
  store_global(static_cast<Out*>(p.out) + row * head_dim + dim, from_float<Out>(value));
}

LAB_DEVICE float lse2_of(float m, float l) { return l == 0.f ? minus_infinity() : m + log2_poly(l); }

// Merges the warps' States in warp order, and writes out and lse2, or the split's partial State.
template <class P, int Threads, int Warps, int Rows, int D>
LAB_DEVICE void merge_warps(const WarpStates<Warps, Rows, D>& states, const DecodeParams& p,
                            const BlockWork& work) {
  for (int i = thread_x(); i < work.n_q_heads * D; i += Threads) {
    const int row = i / D, dim = i % D;
    float m = minus_infinity(), l = 0.f, o = 0.f;
#pragma unroll
    for (int w = 0; w < Warps; ++w) m = maximum(m, states.m[w][row]);
#pragma unroll
    for (int w = 0; w < Warps; ++w) {
      const float weight = rescale_of<P>(states.m[w][row], m);
      l = fma_rn(weight, states.l[w][row], l);
      o = fma_rn(weight, states.o[w][row][dim], o);
    }
    const i64 head = static_cast<i64>(work.batch) * p.q_heads + work.first_q_head + row;
    if (p.splits == 1) {
      store_out<typename P::Out>(p, head, dim, D, l == 0.f ? 0.f : div_rn(o, l));
      if (dim == 0) store_global(p.lse2 + head, lse2_of(m, l));
    } else {
      const i64 slot = head * p.splits + work.split;
      store_global(p.partial_o + slot * D + dim, o);
      if (dim == 0) {
        store_global(p.partial_m + slot, m);
        store_global(p.partial_l + slot, l);
      }
    }
  }
}

}  // namespace lab

// The online-softmax State {m, l, o} of a row of scores: m the maximum in log2 units, l the sum of
// exp2(s - m), o the sum of exp2(s - m) v, not yet divided by l. No key: m = -inf, l = 0, o = 0.
// update folds scores in (each kernel has its own layout for it), merge joins two States, finalize
// divides. The same names in numerics/online_softmax.py.
// A block's Work (BlockWork, PrefillBlock) says which rows it answers for: `row_count(work)` of
// them, row r at `head_index(p, work, r)` of out, with the splits' tickets at `ticket_index`.
#pragma once
#include "lab/policy.cuh"

namespace lab {

// What every score of a row is shifted by before exp2. With no key yet it is 0, so that the masked
// scores of -inf give exp2(-inf) = 0 and not exp2(NaN).
LAB_DEVICE float shift_of(float m) { return m == minus_infinity() ? 0.f : m; }

// exp2(m_old - m_new): exactly 1 when the maximum has not moved.
template <class P> LAB_DEVICE float rescale_of(float m_old, float m_new) {
  return exp2<P>(m_old - shift_of(m_new));
}

// The States of a block's warps, side by side in shared memory. A row of o is padded by 16 bytes:
// the lanes of a store hold several rows of few channels, which would all meet in the same banks.
constexpr int state_padding = 4;
template <int Warps, int Rows, int D> struct WarpStates {
  alignas(16) float o[Warps][Rows][D + state_padding];
  float m[Warps][Rows], l[Warps][Rows];
};

LAB_DEVICE void store4(float* p, const f32x4& x) { store_global(reinterpret_cast<f32x4*>(p), x); }
template <class T> LAB_DEVICE void store4(T* p, const f32x4& x) {
  const u32x2 pairs = {{pack2<T>(x.v[0], x.v[1]), pack2<T>(x.v[2], x.v[3])}};
  store_global(reinterpret_cast<u32x2*>(p), pairs);
}

// How a row is divided by l: number by number, or times 1 / l. That rounds twice, but a division is
// some forty instructions, and those of a merge come cold from memory.
enum class Division { exact, reciprocal };

LAB_DEVICE float reciprocal_of(float l) { return l == 0.f ? 0.f : div_rn(1.f, l); }

// Four channels of a query head's output.
template <class Out, int D, class Params>
LAB_DEVICE void store_out(const Params& p, i64 head, int dim, float l, f32x4 o) {
#pragma unroll
  for (int c = 0; c < 4; ++c) o.v[c] = l == 0.f ? 0.f : div_rn(o.v[c], l);
  store4(static_cast<Out*>(p.out) + head * D + dim, o);
}
template <class Params>
LAB_DEVICE void store_lse2(const Params& p, i64 head, float m, float l) {
  store_global(p.lse2 + head, l == 0.f ? minus_infinity() : m + log2_poly(l));
}

// Merges the warps' States in warp order, and writes out and lse2, or the split's partial State.
template <class P, int Threads, int Warps, int Rows, int D, class Params, class Work>
LAB_DEVICE void merge_warps(const WarpStates<Warps, Rows, D>& states, const Params& p,
                            const Work& work) {
  constexpr int quads = D / 4;         // a thread takes four channels
  for (int i = thread_x(); i < row_count(work) * quads; i += Threads) {
    const int row = i / quads, dim = i % quads * 4;
    float m = minus_infinity(), l = 0.f;
    f32x4 o = {};
#pragma unroll
    for (int w = 0; w < Warps; ++w) m = maximum(m, states.m[w][row]);
#pragma unroll
    for (int w = 0; w < Warps; ++w) {
      const float weight = rescale_of<P>(states.m[w][row], m);
      const f32x4 part = *reinterpret_cast<const f32x4*>(&states.o[w][row][dim]);
      l = fma_rn(weight, states.l[w][row], l);
#pragma unroll
      for (int c = 0; c < 4; ++c) o.v[c] = fma_rn(weight, part.v[c], o.v[c]);
    }
    const i64 head = head_index(p, work, row);
    if (work.live_splits <= 1) {
      store_out<typename P::Out, D>(p, head, dim, l, o);
      if (dim == 0) store_lse2(p, head, m, l);
    } else {
      const i64 slot = head * p.splits + work.split;
      store4(p.partial_o + slot * D + dim, o);
      if (dim == 0) {
        store_global(p.partial_m + slot, m);
        store_global(p.partial_l + slot, l);
      }
    }
  }
}

// A barrier of all threads that write the State; kernels whose warps do different work have others.
struct BlockSync {
  LAB_DEVICE void operator()() const { sync_block(); }
};

// Whether this block is the last of the request's live splits to arrive here: the one that finds
// all partial States written. `verdict` is a word of shared memory that nobody reads any more;
// `leader` is one of the threads that come here.
template <class Params, class Work, class Sync = BlockSync>
LAB_DEVICE bool arrives_last(float& verdict, const Params& p, const Work& work, Sync sync = {},
                             int leader = 0) {
  sync();                              // every thread's part of the State is written
  if (thread_x() == leader) {
    int* ticket = p.tickets + ticket_index(p, work);
    fence_global();                    // the State is out before the ticket
    const bool last = atomic_add_global(ticket, 1) == work.live_splits - 1;
    fence_global();                    // what the other blocks wrote before their tickets is seen
    if (last) store_global(ticket, 0);  // at rest again, for the next launch
    verdict = last ? 1.f : 0.f;
  }
  sync();                              // the leader's verdict is there, for every thread
  return verdict == 1.f;
}

// Merges the splits' States in split order, whichever block does it; a warp takes a query head.
// `warp` is the number of this one among the `Warps` that come here.
// Batch by batch, as `update` goes through the keys: all loads of a batch are in flight at once.
template <class P, int Warps, int D, Division Divide = Division::exact, class Params, class Work>
LAB_DEVICE void merge_splits(const Params& p, const Work& work, int warp = thread_x() / 32) {
  constexpr int passes = (D + 127) / 128, batch = D <= 128 ? 16 : 8;  // 4 channels a lane
  const int lane = thread_x() & 31;
  for (int row = warp; row < row_count(work); row += Warps) {
    const i64 head = head_index(p, work, row), slot = head * p.splits;
    float m = minus_infinity(), l = 0.f;
    f32x4 o[passes] = {};
    for (int first = 0; first < work.live_splits; first += batch) {
      float part_m = minus_infinity(), part_l = 0.f;   // of split first + lane
      if (lane < batch && first + lane < work.live_splits) {
        part_m = load_global(p.partial_m + slot + first + lane);
        part_l = load_global(p.partial_l + slot + first + lane);
      }
      f32x4 part[batch][passes] = {};                  // past the last split: a State of no keys
#pragma unroll
      for (int i = 0; i < batch; ++i)
#pragma unroll
        for (int pass = 0; pass < passes; ++pass) {
          const int dim = pass * 128 + lane * 4;
          if (first + i < work.live_splits && dim < D)
            part[i][pass] = load_global(
                reinterpret_cast<const f32x4*>(p.partial_o + (slot + first + i) * D + dim));
        }
      float top = part_m;
#pragma unroll
      for (int mask = 16; mask > 0; mask /= 2) top = maximum(top, shfl_xor(top, mask));
      top = maximum(m, top);
      const float rescale = rescale_of<P>(m, top), weight = rescale_of<P>(part_m, top);
      m = top;
      l = l * rescale;
#pragma unroll
      for (int pass = 0; pass < passes; ++pass)
#pragma unroll
        for (int c = 0; c < 4; ++c) o[pass].v[c] = o[pass].v[c] * rescale;
#pragma unroll
      for (int i = 0; i < batch; ++i) {
        const float w = shfl(weight, i);
        l = fma_rn(w, shfl(part_l, i), l);
#pragma unroll
        for (int pass = 0; pass < passes; ++pass)
#pragma unroll
          for (int c = 0; c < 4; ++c) o[pass].v[c] = fma_rn(w, part[i][pass].v[c], o[pass].v[c]);
      }
    }
    const float inverse = reciprocal_of(l);
#pragma unroll
    for (int pass = 0; pass < passes; ++pass) {
      const int dim = pass * 128 + lane * 4;
      if constexpr (Divide == Division::exact) {
        if (dim < D) store_out<typename P::Out, D>(p, head, dim, l, o[pass]);
      } else {
#pragma unroll
        for (int c = 0; c < 4; ++c) o[pass].v[c] = o[pass].v[c] * inverse;
        if (dim < D) store4(static_cast<typename P::Out*>(p.out) + head * D + dim, o[pass]);
      }
    }
    if (lane == 0) store_lse2(p, head, m, l);
  }
}

// The end of a kernel whose warps split the keys: the warps' States become the block's, and the
// last block of a request's splits merges those.
template <class P, int Threads, int Warps, int Rows, int D, class Params, class Work>
LAB_DEVICE void finish(WarpStates<Warps, Rows, D>& states, const Params& p, const Work& work) {
  sync_block();                        // every warp's State is there, for every thread
  merge_warps<P, Threads>(states, p, work);
  if (work.live_splits > 1 && arrives_last(states.m[0][0], p, work))
    merge_splits<P, Warps, D>(p, work);
}

}  // namespace lab

// Merges the parts of a row's attention that several warps or blocks have computed, each over some
// of the keys. Such a part is a State: {m, l, o} of online_softmax.cuh. A block's work (DecodeWork,
// WorkTile) says which rows the block computes: there are `row_count(work)`, and row r is at
// `head_index(p, work, r)` of out. The splits' semaphore is at `semaphore_index`.
#pragma once
#include "lab/attention/online_softmax.cuh"
#include "lab/core/head.cuh"

namespace lab {

// The States of a block's warps lie side by side in shared memory. A row of o is padded by 16
// bytes, because the lanes of a store hold several rows of few channels, which would otherwise all
// fall in the same banks.
constexpr int state_padding = LAB_STATE_PADDING;
template <int Warps, int Rows, int D> struct WarpStates {
  alignas(16) float o[Warps][Rows][D + state_padding];
  float m[Warps][Rows], l[Warps][Rows];
};

// Returns the channel of a column of O: that of the same number, or, where V has 8 bits and a
// lane's 16 bits hold two channels, of each 16 columns first the even channels, then the odd ones.
template <bool Paired> LAB_DEVICE constexpr int channel_of(int column) {
  if constexpr (Paired) return (column & ~15) + (column & 7) * 2 + (column >> 3 & 1);
  else return column;
}

// Stores a warp's State of the rows from `first_row` on, for the merge with the other warps.
template <bool Paired = false, int Warps, int TileRows, int D, class Rows, class Output>
LAB_DEVICE void store_state(WarpStates<Warps, TileRows, D>& states, OnlineSoftmaxOf<Rows> softmax,
                            Output& output, int first_row = 0) {
  constexpr int n = registers_of<Output> / Rows::rows;
  const int lane = thread_x() & 31, warp = thread_x() / 32;
  auto& o = flat(output);
  softmax.reduce();
#pragma unroll
  for (int r = 0; r < Rows::rows; ++r) {
    const int row = first_row + Rows::row(r);
    if ((lane & Rows::sharers) == 0) {
      states.m[warp][row] = softmax.m[r];
      states.l[warp][row] = softmax.l[r];
    }
#pragma unroll
    for (int k = 0; k < n; ++k)
      states.o[warp][row][channel_of<Paired>(Rows::column(k))] = o[Rows::at(r, k, n)];
  }
}

LAB_DEVICE void store4(float* p, const f32x4& x) { store_global(reinterpret_cast<f32x4*>(p), x); }
template <class T> LAB_DEVICE void store4(T* p, const f32x4& x) {
  const u32x2 pairs = {{pack2<T>(x.v[0], x.v[1]), pack2<T>(x.v[2], x.v[3])}};
  store_global(reinterpret_cast<u32x2*>(p), pairs);
}

// A row is divided by l, or multiplied by 1 / l. The multiplication by 1 / l rounds twice, but a
// division takes many instructions, which a merge first has to fetch from memory.
enum class Division { exact, reciprocal };

// Divides four channels of a query head's output by l and stores them.
template <class Out, int D, class Params>
LAB_DEVICE void store_out(const Params& p, i64 head, int dim, float l, f32x4 o) {
#pragma unroll
  for (int c = 0; c < 4; ++c) o.v[c] = l == 0.f ? 0.f : div_rn(o.v[c], l);
  if constexpr (requires { p.scales; }) scale_values(p, head, o);  // of a cache of 8 bits
  store4(static_cast<Out*>(p.out) + head * D + dim, o);
}
template <class Params>
LAB_DEVICE void store_lse2(const Params& p, i64 head, float m, float l) {
  store_global(p.lse2 + head, lse2_of(m, l));
}
// Stores {m, l} of a row's split; slot = head * splits + split.
template <class Params>
LAB_DEVICE void store_partial(const Params& p, i64 slot, float m, float l) {
  store_global(p.partial_m + slot, m);
  store_global(p.partial_l + slot, l);
}

// Merges the warps' States in warp order, and writes out and lse2, or the split's partial State.
template <class P, int Threads, int Warps, int Rows, int D, class Params, class Work>
LAB_DEVICE void merge_warps(const WarpStates<Warps, Rows, D>& states, const Params& p,
                            const Work& work) {
  constexpr int channels = head_channels<D>, quads = channels / 4;  // a thread takes four
  for (int i = thread_x(); i < row_count(work) * quads; i += Threads) {
    const int row = i / quads, dim = i % quads * 4;
    float m = lowest_score(), l = 0.f;
    f32x4 o[1] = {};
#pragma unroll
    for (int w = 0; w < Warps; ++w) m = maximum(m, states.m[w][row]);
#pragma unroll
    for (int w = 0; w < Warps; ++w) {
      const float weight = exp2<P>(states.m[w][row] - m);
      const f32x4 part[1] = {*reinterpret_cast<const f32x4*>(&states.o[w][row][dim])};
      merge(l, o, weight, states.l[w][row], part);
    }
    const i64 head = head_index(p, work, row), slot = head * p.splits + work.split;
    if (work.live_splits <= 1) {
      store_out<typename P::Out, channels>(p, head, dim, l, o[0]);
      if (dim == 0) store_lse2(p, head, m, l);
    } else {
      store4(p.partial_o + slot * channels + dim, o[0]);
      if (dim == 0) store_partial(p, slot, m, l);
    }
  }
}

// This barrier waits for all threads of the block. Kernels with specialised warps pass a barrier
// that waits only for the threads that write the State.
struct BlockSync {
  LAB_DEVICE void operator()() const { sync_block(); }
};

// Returns whether this block is the last of the request's live splits to arrive here. All partial
// States are then written. `is_last_split` is a free word of shared memory; `leader` is one of the
// threads that call this.
template <class Params, class Work, class Sync = BlockSync>
LAB_DEVICE bool arrives_last(float& is_last_split, const Params& p, const Work& work,
                             Sync sync = {}, int leader = 0) {
  sync();  // every thread's part of the State is written
  if (thread_x() == leader) {
    int* semaphore = p.split_semaphores + semaphore_index(p, work);
    fence_global();  // the State is visible before the semaphore counts it
    const bool last = atomic_add_global(semaphore, 1) == work.live_splits - 1;
    fence_global();                        // makes the writes of the blocks that arrived visible
    if (last) store_global(semaphore, 0);  // reset for the next launch
    is_last_split = last ? 1.f : 0.f;
  }
  sync();  // the leader's word is there, for every thread
  return is_last_split == 1.f;
}

// Merges the splits' States, always in split order. Of the `Warps` warps that call this, warp
// number `warp` merges the query heads warp, warp + Warps, and so on. Where several warps share a
// head, each warp merges `Channels` of its D channels, from `first_channel` on, and no other head.
// Splits are merged in batches, so that a batch's loads are all in flight at once.
template <class P, int Warps, int D, Division Divide = Division::exact, int Channels = D,
          class Params, class Work>
LAB_DEVICE void merge_splits(const Params& p, const Work& work, int warp = thread_x() / 32,
                             int first_channel = 0) {
  constexpr int passes = (Channels + 127) / 128, batch = D <= 128 ? 16 : 8;  // 4 channels per lane
  const int lane = thread_x() & 31;
  for (int row = warp; row < row_count(work); row += Warps) {
    const i64 head = head_index(p, work, row), slot = head * p.splits;
    float m = lowest_score(), l = 0.f;
    f32x4 o[passes] = {};
    for (int first = 0; first < work.live_splits; first += batch) {
      float part_m = lowest_score(), part_l = 0.f;  // of split first + lane
      if (lane < batch && first + lane < work.live_splits) {
        part_m = load_global(p.partial_m + slot + first + lane);
        part_l = load_global(p.partial_l + slot + first + lane);
      }
      f32x4 part[batch][passes] = {};  // past the last split: a State of no keys
#pragma unroll
      for (int i = 0; i < batch; ++i)
#pragma unroll
        for (int pass = 0; pass < passes; ++pass) {
          const int dim = first_channel + pass * 128 + lane * 4;
          if (first + i < work.live_splits && dim < D)
            part[i][pass] = load_global(
                reinterpret_cast<const f32x4*>(p.partial_o + (slot + first + i) * D + dim));
        }
      float top = part_m;
#pragma unroll
      for (int mask = 16; mask > 0; mask /= 2) top = maximum(top, shfl_xor(top, mask));
      const float rescale = raise_maximum<P>(m, l, top), weight = exp2<P>(part_m - m);
#pragma unroll
      for (int pass = 0; pass < passes; ++pass)
#pragma unroll
        for (int c = 0; c < 4; ++c) o[pass].v[c] = o[pass].v[c] * rescale;
#pragma unroll
      for (int i = 0; i < batch; ++i) merge(l, o, shfl(weight, i), shfl(part_l, i), part[i]);
    }
    const float inverse = inverse_of(l);
#pragma unroll
    for (int pass = 0; pass < passes; ++pass) {
      const int dim = first_channel + pass * 128 + lane * 4;
      if constexpr (Divide == Division::exact) {
        if (dim < D) store_out<typename P::Out, D>(p, head, dim, l, o[pass]);
      } else {
#pragma unroll
        for (int c = 0; c < 4; ++c) o[pass].v[c] = o[pass].v[c] * inverse;
        if (dim < D) store4(static_cast<typename P::Out*>(p.out) + head * D + dim, o[pass]);
      }
    }
    if (lane == 0 && first_channel == 0) store_lse2(p, head, m, l);
    if constexpr (Channels < D) break;  // keeps ptxas from holding registers for a next head
  }
}

// Ends a kernel whose warps split the keys: merges the warps' States into the block's State. The
// last block of a request's splits then merges the States of all splits.
template <class P, int Threads, int Warps, int Rows, int D, class Params, class Work>
LAB_DEVICE void finish(WarpStates<Warps, Rows, D>& states, const Params& p, const Work& work) {
  sync_block();  // every warp's State is there, for every thread
  merge_warps<P, Threads>(states, p, work);
  if (work.live_splits > 1 && arrives_last(states.m[0][0], p, work))
    merge_splits<P, Warps, head_channels<D>>(p, work);
}

}  // namespace lab

// A consumer warpgroup of mla_wgmma computes S and P of every other key block, and half of O.
#pragma once
#include "mla/wgmma/rows.cuh"

namespace mla_wgmma {

// This thread holds rows `row` and `row` + 8 of the block (index h), and two of every 8 columns.
template <class C, class P> struct Consumer {
  using T = typename C::T;
  using Fragments = u32[C::keys / 16][4];  // P in 16 bits: [64 rows, keys of a block]
  Smem<C>& smem;
  const Params& p;
  const Work& work;
  int group, row, all_see;  // every row sees the keys below all_see
  // The warpgroup's products read Q, these tiles of its own stage, and the `other` tiles, which are
  // in the other warpgroup's stage.
  KMajor<typename C::Q> q_tile;
  KMajor<typename C::Half> k_tile;
  KMajor<typename C::Pe> pe_tile, other_p_tile;
  MnMajor<typename C::Half> v_tile, other_v_tile;
  float o[128] = {};      // [64 rows, the warpgroup's 256 channels]
  OnlineSoftmax softmax;  // its l is of this thread's columns and key blocks

  LAB_DEVICE Consumer(Smem<C>& s, const Params& params, const Work& block, int group_)
      : smem(s), p(params), work(block), group(group_),
        row(thread_x() % C::group_threads / 32 * 16 + thread_x() % 32 / 4),
        all_see(least(row_limit(p.mla, work, 0), work.end_key)) {
    Stage<C>&own = smem.k[group], &other = smem.k[group ^ 1];
    q_tile = k_major(smem.q);
    k_tile = k_major(own.half[0]);
    pe_tile = k_major(own.pe);
    v_tile = mn_major(own.half[group]);
    other_p_tile = k_major(other.pe);
    other_v_tile = mn_major(other.half[group]);
  }

  LAB_DEVICE void run() {
    const int n = key_blocks<C>(work);
    if (n > 0) {
      if (group == 1) arrive_before_first();
      else turn<true>(0);
      for (int j = 2 - group; j < n; j += 2) turn<false>(j);
      if (n % 2 == group) {  // the other warpgroup computed the last key block
        sync_max();
        accumulate_other();
        wgmma_wait(o);
      }
    }
    RowsOut<C, P>{smem, p.mla, work, group, row}.store(o, softmax);
  }

 private:
  // Warpgroup 1 acts as if it had finished a key block before the first, with the lowest scores.
  LAB_DEVICE void arrive_before_first() {
    if (thread_x() % 4 == 0)
#pragma unroll
      for (int h = 0; h < 2; ++h) smem.m[1][row + 8 * h] = lowest_score();
    named_arrive(p_ready + 1, C::consumer_threads);
  }

  // Computes a key block of this warpgroup. P V of the other warpgroup's block comes between the
  // two parts of S, because this product frees a stage, and the second part of K arrives last.
  template <bool First> LAB_DEVICE void turn(int j) {
    const int first_key = work.first_key + j * C::keys;
    const int live = work.end_key - first_key;
    if (live < C::keys && p.box_keys > 0) clear_tail(live, j);
    float s[32];  // [64 rows, keys of the block]
    scores<0>(s, j);
    sync_max();  // O is rescaled while wgmma computes S
    if constexpr (!First) accumulate_other();
    scores<1>(s, j);
    if constexpr (!First) release<1>(j - 1);
    wgmma_wait(s);
    if (first_key + C::keys > all_see) mask(s, first_key);
    const Rescale rescale = softmax.template update<P, T>(s, p.mla.scale_log2);
    Fragments probabilities;
    round_to_fragments<T>(probabilities, s);
    store_p(probabilities);
    rescale_rows(o, rescale);
    wgmma_ab(o, probabilities, v_tile);
    release<0>(j);
  }

  template <class Operand> LAB_DEVICE static Operand shift(const Operand& tile, u64 by) {
    return {tile.descriptor + by};
  }
  // Starts S = Q K^T over a part of the channels: part 0 is the half that the warpgroup has of O,
  // and part 1 is the rest. s: [64 rows, keys of the block].
  template <int Part> LAB_DEVICE void scores(float (&s)[32], int j) {
    const int half = group ^ Part;
    constexpr int q_pitch = C::Q::column_pitch / atom_columns;  // elements per column of an atom
    // The compiler cannot know that this is zero. If it knew, it would keep a turn's descriptors
    // for the next turn, and the kernel has no registers for them.
    const u64 zero = warp_uniform(0);
    consumer_wait(smem.half_ring[half], j);
    wgmma_fence();
    const auto q = shift(q_tile, zero);
    const auto k = shift(k_tile, zero);
    multiply_abt(s, further(q, half * C::half_v * q_pitch), further(k, half * C::Half::elements),
                 Part == 1);
    if constexpr (Part == 1)
      multiply_abt(s, further(q, C::d_v * q_pitch), shift(pe_tile, zero), true);
    wgmma_commit();
  }

  // Clears the last block's keys past the end, because a P of zero times a stale NaN would be NaN.
  LAB_DEVICE void clear_tail(int live, int j) {
    consumer_wait(smem.half_ring[0], j);
    consumer_wait(smem.half_ring[1], j);
    Stage<C>& tile = smem.k[group];
    const int thread = thread_x() % C::group_threads;
    clear_rows(tile.half[0], live, thread, C::group_threads);
    clear_rows(tile.half[1], live, thread, C::group_threads);
    clear_rows(tile.pe, live, thread, C::group_threads);
    fence_async_shared();
    named_sync(group_done + group, C::group_threads);
  }

  // [lab: mask]
  // Sets the scores of keys that a row does not see to -inf. Only blocks at a boundary need this.
  // s: [64 rows, keys of the block].
  LAB_DEVICE void mask(float (&s)[32], int first_key) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int end = least(row_limit(p.mla, work, row + 8 * h), work.end_key);
#pragma unroll
      for (int i = 0; i < 32; i += 4)
#pragma unroll
        for (int c = 0; c < 2; ++c)
          if (first_key + i * 2 + thread_x() % 4 * 2 + c >= end)
            s[i + 2 * h + c] = minus_infinity();
    }
  }
  // [/lab: mask]

  // Waits for P of the block before, which the other warpgroup computes, and takes the other
  // warpgroup's maximum, which is at least as large as this warpgroup's maximum.
  LAB_DEVICE void sync_max() {
    named_sync(p_ready + (group ^ 1), C::consumer_threads);
    Rescale rescale;
#pragma unroll
    for (int h = 0; h < 2; ++h)
      rescale.by[h] = softmax.template raise<P>(h, smem.m[group ^ 1][row + 8 * h]);
    rescale_rows(o, rescale);
  }

  // Starts O += P V of the other warpgroup's key block.
  LAB_DEVICE void accumulate_other() { wgmma_ab(o, other_p_tile, other_v_tile); }

  // Waits until P V of key block j is in O; `Later` groups of wgmma were committed after it. Then
  // releases the warpgroup's half of the block's stage.
  template <int Later> LAB_DEVICE void release(int j) {
    wgmma_wait<Later>(o);
    if (thread_x() % 32 == 0) mbarrier_arrive(smem.half_ring[group].empty[j % 2]);
  }

  // [lab: hand over]
  // Stores P in the place of kpe, as the A tile of the other warpgroup.
  LAB_DEVICE void store_p(const Fragments& probabilities) {
    named_sync(group_done + group, C::group_threads);  // all four warps have read kpe
    const int lane = thread_x() % 32, line = row / 16 * 16 + lane % 16;
#pragma unroll
    for (int k = 0; k < C::keys / 16; ++k)
      stmatrix_x4(shared_address(smem.k[group].pe.chunk_at(line, 0, 2 * k + lane / 16)),
                  probabilities[k]);
    if (lane % 4 == 0)
#pragma unroll
      for (int h = 0; h < 2; ++h) smem.m[group][row + 8 * h] = softmax.m[h];
    fence_async_shared();
    named_arrive(p_ready + group, C::consumer_threads);
  }
  // [/lab: hand over]
};

}  // namespace mla_wgmma

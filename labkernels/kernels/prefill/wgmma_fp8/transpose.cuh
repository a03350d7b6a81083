// A warp transposes V, because wgmma takes 8-bit operands with K, here the keys, contiguous alone.
#pragma once
#include "prefill/wgmma_fp8/traits.cuh"

namespace prefill_wgmma_fp8 {
using namespace lab;

// Transposes 32 keys x 16 channels at a time. ldmatrix gives lane 4i + t the channels 2i and 2i + 1
// of keys 2t and 2t + 1 of each 8; bytes of two of these words make a channel's keys 2t, 2t + 1, 8
// + 2t and 9 + 2t, which is the order in which round_to_fragments has P. Lanes with i >= 4 exchange
// their two channels, so that the eight rows that stmatrix writes lie in different banks.
template <class C> LAB_DEVICE void transpose(typename C::V& to, const typename C::RawV& from) {
  const int lane = thread_x() & 31, r = lane % 8;
  const u32 even = lane < 16 ? 0x6420 : 0x7531, odd = lane < 16 ? 0x7531 : 0x6420;
  // the row of V that this lane names in ldmatrix, and the row of the transposed V in stmatrix
  const u32 source = shared_address(from.data) + lane * 128 + (r << 4);
  const int channel = 2 * r + ((lane / 8 & 1) ^ r / 4);
  const u32 target = shared_address(to.data) + channel * 128 + ((lane / 16 ^ channel % 8) << 4);
#pragma unroll 1
  for (int c = 0; c < C::dim_vo / 16; ++c) {
    // an atom has 8 chunks of 16 channels; further channels lie Keys rows later
    const u32 column = (source ^ c % 8 << 4) + c / 8 * C::RawV::rows * 128;
#pragma unroll
    for (int k = 0; k < C::keys; k += 32) {
      u32 raw[4], words[4];
      ldmatrix_x4_trans(raw, column + k * 128);
#pragma unroll
      for (int i = 0; i < 4; ++i)
        words[i] = select_bytes(raw[i / 2 * 2], raw[i / 2 * 2 + 1], i % 2 == 0 ? even : odd);
      // 128 keys of all channels are an atom's columns
      stmatrix_x4((target ^ k % 128 / 16 << 4) + (c * 16 + k / 128 * C::dim_vo) * 128, words);
    }
  }
}

// Transposes all tiles of V, as the TMA brings them.
template <class C> LAB_DEVICE void transpose_values(Smem<C>& smem) {
  int n = 0;
  for (int i = 0; receive(smem, i).blocks > 0; ++i) {
    for (int blocks = smem.tile(i).blocks; blocks > 0; --blocks, ++n) {
      consumer_wait(smem.raw_ring, n);
      producer_acquire(smem.v_ring, n);
      transpose<C>(smem.v[smem.v_ring.stage(n)], smem.raw[smem.raw_ring.stage(n)]);
      consumer_release(smem.raw_ring, n);
      fence_async_shared();
      warp_arrive(smem.v_ring.full[smem.v_ring.stage(n)]);
    }
    consumer_release(smem.tile_ring, i);
  }
}

}  // namespace prefill_wgmma_fp8

// Two warps transpose V, because wgmma takes 8-bit operands with K, here the keys, contiguous.
#pragma once
#include "prefill/wgmma_fp8/traits.cuh"

namespace prefill_wgmma_fp8 {
using namespace lab;

constexpr int transposers = 2;  // warps, each with its part of the channels

// Transposes 16 channels of 32 keys at a time. ldmatrix gives lane 4i + t channels 2i and 2i + 1
// of keys 2t and 2t + 1 of each 8; bytes of two of these words make a channel's keys 2t, 2t + 1, 8
// + 2t and 9 + 2t, which is the order in which round_to_fragments has P. Lanes with i >= 4 exchange
// their two channels, so that the eight rows that stmatrix writes lie in different banks.
template <class C>
LAB_DEVICE void transpose(typename C::V& to, const typename C::RawV& from, int part) {
  const int lane = thread_x() & 31, r = lane % 8;
  const u32 even = lane < 16 ? 0x6420 : 0x7531, odd = lane < 16 ? 0x7531 : 0x6420;
  // the row of V that this lane names in ldmatrix, and the row of the transposed V in stmatrix
  constexpr int chunks = C::dim_vo / 16 / transposers;  // of 16 channels
  const u32 source = shared_address(from.data) + lane * 128 + ((r ^ part * chunks) << 4);
  const int channel = 2 * r + ((lane / 8 & 1) ^ r / 4);
  const u32 target = shared_address(to.data) + (part * chunks * 16 + channel) * 128 +
                     ((lane / 16 ^ channel % 8) << 4);
#pragma unroll 1
  for (int c = 0; c < chunks; ++c) {
    const u32 column = source ^ c << 4;
#pragma unroll
    for (int first = 0; first < C::keys; first += 64) {  // a load waits for earlier stores
      u32 raw[2][4];                                     // [32 keys, 8 x 8 words]
#pragma unroll
      for (int k = first; k < first + 64 && k < C::keys; k += 32)
        ldmatrix_x4_trans(raw[k / 32 % 2], column + k * 128);
#pragma unroll
      for (int k = first; k < first + 64 && k < C::keys; k += 32) {
        const u32 (&x)[4] = raw[k / 32 % 2];
        u32 words[4];  // [8 x 8 words]
#pragma unroll
        for (int i = 0; i < 4; ++i)
          words[i] = select_bytes(x[i / 2 * 2], x[i / 2 * 2 + 1], i % 2 == 0 ? even : odd);
        // 128 keys of all channels are an atom's columns
        stmatrix_x4((target ^ k % 128 / 16 << 4) + (c * 16 + k / 128 * C::dim_vo) * 128, words);
      }
    }
  }
}

// Turns V into 16 bits, which wgmma takes in this order: a lane takes 16 channels of a key.
template <class C>
LAB_DEVICE void widen_tile(typename C::V& to, typename C::RawV& from, int part) {
#pragma unroll 2
  for (int i = part * 32 + (thread_x() & 31); i < C::keys * 8; i += 32 * transposers) {
    const int key = i / 8, c = i % 8;
    const auto codes = *reinterpret_cast<const u32x4*>(from.chunk_at(key, 0, c));
    u32x4 wide[2];  // [16 channels]
#pragma unroll
    for (int w = 0; w < 4; ++w)
      widen<typename C::Rounded, e4m3>(wide[w / 2].v[w % 2 * 2], wide[w / 2].v[w % 2 * 2 + 1],
                                       codes.v[w]);
    const int upper = c / 4;  // these lanes store in the other order: their banks are the same
#pragma unroll
    for (int half = 0; half < 2; ++half)
      *reinterpret_cast<u32x4*>(to.chunk_at(key, c * 16, c % 4 * 2 + (half ^ upper))) =
          half ^ upper ? wide[1] : wide[0];
  }
}

// Transposes all tiles of V, as the TMA brings them. Rows after the request's last key belong to
// another request or to none. They must be zeros, because P is 0 there, and 0 times a NaN is a NaN.
template <class C> LAB_DEVICE void transpose_values(Smem<C>& smem, int part) {
  int n = 0;
  for (int i = 0; receive(smem, i).blocks > 0; ++i) {
    int keys = smem.tile(i).work.kv_len - smem.tile(i).last_key;  // of the request, from here on
    for (int blocks = smem.tile(i).blocks; blocks > 0; --blocks, ++n, keys += C::keys) {
      typename C::RawV& raw = smem.raw[smem.raw_ring.stage(n)];
      consumer_wait(smem.raw_ring, n);
      if (keys < C::keys) {
        clear_rows(raw, keys, part * 32 + (thread_x() & 31), transposers * 32);
        named_sync(consumers_done<C> + 1, transposers * 32);
      }
      producer_acquire(smem.v_ring, n);
      typename C::V& to = smem.v[smem.v_ring.stage(n)];
      if constexpr (C::v_is_transposed) transpose<C>(to, raw, part);
      else widen_tile<C>(to, raw, part);
      fence_async_shared();  // what was stored here, before wgmma reads and the TMA writes there
      consumer_release(smem.raw_ring, n);
      warp_arrive(smem.v_ring.full[smem.v_ring.stage(n)]);
    }
    consumer_release(smem.tile_ring, i);
  }
}

// Asks for a box of all channels.
template <class Tile, int Stages>
LAB_DEVICE void load(Tile (&tiles)[Stages], Pipeline<Stages>& ring, int n, const TensorMap& map,
                     int head, int key) {
  producer_acquire(ring, n);
  if ((thread_x() & 31) != 0) return;
  Mbarrier& full = ring.full[ring.stage(n)];
  mbarrier_arrive_expect_tx(full, sizeof(Tile));
  tma_load(tiles[ring.stage(n)].data, map, full, 0, head, key, CacheHint::evict_last);
}

// Brings K and V of all blocks of keys: as they come, V is a block's second tile.
template <class C> LAB_DEVICE void bring_codes(Smem<C>& smem, const typename C::Params& p) {
  int n = 0;
  for (int i = 0; receive(smem, i).blocks > 0; ++i) {
    const auto& tile = smem.tile(i);
    int key = static_cast<int>(tile.work.first_kv) + tile.last_key;
    for (int blocks = tile.blocks; blocks > 0; --blocks, ++n, key -= C::keys) {
      if (blocks == least(tile.blocks, 2) && (thread_x() & 31) == 0)
        mbarrier_arrive(smem.tile_wanted);
      load(smem.k, smem.k_ring, n, p.k, tile.work.kv_head, key);
      load(smem.raw, smem.raw_ring, n, p.v, tile.work.kv_head, key);
    }
    consumer_release(smem.tile_ring, i);
  }
}

}  // namespace prefill_wgmma_fp8

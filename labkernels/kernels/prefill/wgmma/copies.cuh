// Where a page holds no box of the TMA, three warps copy K and V to shared memory, by instructions
// that copy 16 bytes per lane.
#pragma once
#include "prefill/wgmma/keys.cuh"

namespace prefill_wgmma {
using namespace lab;

// Each of the warps that copy takes every third group of 16 keys of all tiles of K and V. The K of
// a block is copied together with the V of the block before, because their stages become free
// together: the latency of memory passes once for both.
template <class C> struct Copier {
  static constexpr int warps = 3, threads = 32 * warps, group_keys = 16;
  // A warp copies `groups` groups of a block. A lane finds the place of one key per two groups.
  static constexpr int groups = (C::keys / group_keys + warps - 1) / warps;
  static constexpr int page_words = (groups + 1) / 2;
  using T = typename C::T;
  static_assert(C::keys % group_keys == 0, "whole groups");

  // These say where a block's keys lie: the work tile, the first key, and this lane's pages.
  struct Block { int tile, key, pages[page_words]; };

  Smem<C>& smem;
  const typename C::Params& p;
  const int warp, lane;
  const int first_own;  // own_key(0)
  int n = 0;            // blocks of keys so far

  LAB_DEVICE Copier(Smem<C>& shared, const typename C::Params& params, int warp_)
      : smem(shared), p(params), warp(warp_), lane(thread_x() & 31),
        first_own((warp + lane % 8 / 4 * warps) * group_keys + lane % 4 * 4 + lane / 8) {}

  LAB_DEVICE void run() {
    Block of_k, of_v;
    for (of_k.tile = 0; receive(smem, of_k.tile).blocks > 0; ++of_k.tile) {
      const ScheduledTile<C>& tile = smem.tile(of_k.tile);
      find(of_k, tile.last_key);
      for (int blocks = tile.blocks; blocks > 0; --blocks, ++n) {
        if (warp == 0 && lane == 0 && blocks == least(tile.blocks, 2))
          mbarrier_arrive(smem.tile_wanted);
        copy_keys(of_k);
        copy_values(of_v);
        of_v = of_k;
        if (blocks > 1) find(of_k, of_k.key - C::keys);  // its loads run during the copies
        if (blocks == tile.blocks && of_k.tile > 0) consumer_release(smem.tile_ring, of_k.tile - 1);
      }
    }
    copy_values(of_v);
  }

 private:
  // Returns the j-th key of a block whose place this lane finds. The warp copies four keys at a
  // time. Lane 8r + q finds row r of these four, for the q-th of the eight times that the groups 2j
  // and 2j + 1 take.
  LAB_DEVICE int own_key(int j) const { return first_own + j * 2 * warps * group_keys; }
  LAB_DEVICE int page_of_key(const typename C::Work& work, int key) const {
    const bool hidden =
        C::Variant::window && key < row_begin<typename C::Variant>(p.problem, work, 0);
    return hidden ? -1 : page_of(p.problem, work, key);
  }
  LAB_DEVICE void find(Block& block, int key) const {
    block.key = key;
#pragma unroll
    for (int j = 0; j < page_words; ++j)
      block.pages[j] = page_of_key(smem.tile(block.tile).work, key + own_key(j));
  }

  LAB_DEVICE void copy_keys(const Block& block) const {
    const PrefillParams& t = p.problem;
    producer_acquire(smem.k_ring, n);
    copy(smem.k[smem.k_ring.stage(n)], t.k, t.k_stride_page, t.k_stride_token, t.k_stride_head,
         block);
    mbarrier_arrive_copied(smem.k_ring.full[smem.k_ring.stage(n)]);
  }
  LAB_DEVICE void copy_values(const Block& block) const {
    const PrefillParams& t = p.problem;
    if (n > 0) {
      producer_acquire(smem.v_ring, n - 1);
      copy(smem.v[smem.v_ring.stage(n - 1)], t.v, t.v_stride_page, t.v_stride_token,
           t.v_stride_head, block);
      mbarrier_arrive_copied(smem.v_ring.full[smem.v_ring.stage(n - 1)]);
    }
  }

  // Copies the warp's keys of a block, and zeros after the request's last key. Eight lanes copy 64
  // channels of a key. The warp's own instructions limit how fast copies are issued. Everything
  // that is the same for all blocks is therefore in the constant offsets of the copies.
  template <class Tile>
  LAB_DEVICE void copy(Tile& to, const void* pool, i64 stride_page, i64 stride_token,
                       i64 stride_head, const Block& block) const {
    const typename C::Work& work = smem.tile(block.tile).work;
    const T* head = static_cast<const T*>(pool) + work.kv_head * stride_head;
    u64 own[page_words];  // addresses of this lane's keys
#pragma unroll
    for (int j = 0; j < page_words; ++j) {
      const int row = row_in_page(p.problem, block.key + own_key(j));
      own[j] = reinterpret_cast<u64>(
          block.pages[j] < 0 ? head : head + (block.pages[j] * stride_page + row * stride_token));
    }
    const int c = lane % 8, first = warp * group_keys + lane / 8;
    const int keys = work.kv_len - block.key - first;
    const int hidden = row_begin<typename C::Variant>(p.problem, work, 0) - block.key - first;
    // This lane's chunks of an atom's first four rows go to `upper`, and those of its last four to
    // `lower`.
    const u32 upper = shared_address(to.chunk_at(first, 0, c));
    const u32 lower = shared_address(to.chunk_at(first + 4, 0, c));
#pragma unroll
    for (int group = 0; group < groups; ++group) {
      if (warp * group_keys + group * warps * group_keys >= C::keys) break;
#pragma unroll
      for (int q = 0; q < 4; ++q) {
        const int k = group * warps * group_keys + q * 4;
        const T* source = address(own[group / 2], group % 2 * 4 + q) + c * chunk_elements;
#pragma unroll
        for (int column = 0; column < Tile::columns / atom_columns; ++column)
          cp_async_16((q % 2 == 0 ? upper : lower) +
                          (k / atom_rows * Tile::row_pitch + column * Tile::column_pitch) * 2,
                      source + column * atom_columns,
                      k < keys && (!C::Variant::window || k >= hidden) &&
                          in_head<Tile::columns>(column * atom_columns + c * chunk_elements));
      }
    }
  }
  // Returns the address that lane q of this lane's eight holds.
  LAB_DEVICE static const T* address(u64 own, int q) {
    const u32 low = shfl_octet(static_cast<u32>(own), q);
    const u32 high = shfl_octet(static_cast<u32>(own >> 32), q);
    return reinterpret_cast<const T*>(u64{high} << 32 | low);
  }
};

}  // namespace prefill_wgmma

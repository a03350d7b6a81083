// The rungs below wgmma multiply by FMAs on CUDA cores or by mma.sync, for which a warp first reads
// the operands into registers. Their producer warp copies rows, where the TMA copies whole tiles.
#pragma once
#include "prefill/rungs/traits.cuh"

namespace prefill_wgmma_basic {
using namespace lab;

// [rung: copies]
// Copies rows of a tensor into a tile, 16 bytes per lane. Rows from row n on are filled with zeros.
// offset(row) is the element of the tensor at which a row begins.
template <class Tile, class Offset>
LAB_DEVICE void copy_tile(Tile& tile, const void* tensor, int n, Mbarrier& full, Offset offset) {
  using T = typename Tile::T;
  const int lane = thread_x() & 31, c = lane % 8;
#pragma unroll 1
  for (int row = lane / 8; row < Tile::rows; row += 4) {
    const T* source = static_cast<const T*>(tensor) + (row < n ? offset(row) : 0);
#pragma unroll
    for (int column = 0; column < Tile::columns; column += atom_columns)
      cp_async_16(tile.chunk_at(row, column, c), source + column + c * chunk_elements, row < n);
  }
  cp_async_commit();
  cp_async_wait<0>();
  warp_arrive(full);
}
// The producer warp copies Q once per tile, and then K and V block by block.
template <class C>
  requires (C::rung < Rung::tma)
LAB_DEVICE void produce(Smem<C>& smem, const Params& p, const typename C::Work& tile,
                        Progress& at) {
  const PrefillParams& q = p.problem;
  producer_acquire(smem.q_ring, at.tiles);
  copy_tile(smem.q, q.q, tile.n_rows, smem.q_ring.full[0], [&](int row) {
    const int packed = tile.first_row + row, token = token_of(q, packed);
    return (tile.first_token + token) * q.q_stride_token +
           (tile.kv_head * q.group + packed - token * q.group) * q.q_stride_head;
  });
  ++at.tiles;
  for (KeyBlocks<C> keys(q, tile); keys.more(); keys.next(), ++at.blocks) {
    const int stage = at.blocks % C::stages, n = tile.kv_len - keys.key;
    const i64 token = tile.first_kv + keys.key;
    producer_acquire(smem.k_ring, at.blocks);
    copy_tile(smem.k[stage], q.k, n, smem.k_ring.full[stage], [&](int row) {
      return (token + row) * q.k_stride_token + tile.kv_head * q.k_stride_head;
    });
    producer_acquire(smem.v_ring, at.blocks);
    copy_tile(smem.v[stage], q.v, n, smem.v_ring.full[stage], [&](int row) {
      return (token + row) * q.v_stride_token + tile.kv_head * q.v_stride_head;
    });
  }
}
// [/rung: copies]

// [rung: fma]
// Reads eight elements of a row of a tile, as floats. x: [8 columns].
template <class Tile>
LAB_DEVICE void read_eight(float (&x)[8], Tile& tile, int row, int column) {
  const u32x4 pairs = *reinterpret_cast<const u32x4*>(
      tile.chunk_at(row, column / atom_columns * atom_columns, column % atom_columns / 8));
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const f32x2 pair = unpack2<typename Tile::T>(pairs.v[i]);
    x[2 * i] = pair.x;
    x[2 * i + 1] = pair.y;
  }
}
// Adds A B^T to s, for 16 rows of A from `row` on and all rows of B. s: [16 rows, 2 N keys]. Each
// lane computes those elements that it would hold in an accumulator of mma.
template <class C, class A, class B, int N>
  requires (C::rung == Rung::fma)
LAB_DEVICE void add_abt(float (&s)[N], A& a, int row, B& b) {
  const int g = (thread_x() & 31) / 4, t = thread_x() & 3;
#pragma unroll 1
  for (int d = 0; d < B::columns; d += 8) {  // channels
    float left[2][8], right[8];              // [2 rows, 8 channels]; [8 channels]
    read_eight(left[0], a, row + g, d);
    read_eight(left[1], a, row + g + 8, d);
#pragma unroll
    for (int k = 0; k < N / 2; ++k) {  // a lane has two of each eight keys
      read_eight(right, b, k / 2 * 8 + 2 * t + k % 2, d);
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        float& sum = s[k / 2 * 4 + i / 8 * 2 + k % 2];
        sum = fma_rn(left[i / 8][i % 8], right[i % 8], sum);
      }
    }
  }
}
// Adds P B to o. One lane of a quad holds the P of a key and sends it to the three others.
// o: [16 rows, 2 N channels]; p: [16 rows, 16 K keys].
template <class C, class B, int N, int K>
  requires (C::rung == Rung::fma)
LAB_DEVICE void add_ab(float (&o)[N], const u32 (&p)[K][4], B& b) {
  using T = typename B::T;
  const int quad = (thread_x() & 31) / 4 * 4, t = thread_x() & 3;
#pragma unroll
  for (int k = 0; k < K; ++k)
#pragma unroll
    for (int half = 0; half < 2; ++half)  // keys 0 to 7, then 8 to 15
#pragma unroll 1
      for (int pair = 0; pair < 4; ++pair) {  // lane quad + pair holds P of two keys
        f32x2 weights[2];                     // P of rows g and g + 8
#pragma unroll
        for (int r = 0; r < 2; ++r)
          weights[r] =
              unpack2<T>(float_to_bits(shfl(bits_to_float(p[k][2 * half + r]), quad + pair)));
#pragma unroll
        for (int i = 0; i < N; i += 4) {  // channels 2 i + 2 t and 2 i + 2 t + 1
          const int key = 16 * k + 8 * half + 2 * pair, channel = 2 * i + 2 * t;
#pragma unroll
          for (int j = 0; j < 2; ++j) {
            const int column = channel / atom_columns * atom_columns;
            const T* at = b.chunk_at(key + j, column, channel % atom_columns / 8) + 2 * t;
            const f32x2 v = unpack2<T>(*reinterpret_cast<const u32*>(at));
#pragma unroll
            for (int r = 0; r < 2; ++r) {
              const float weight = j == 0 ? weights[r].x : weights[r].y;
              o[i + 2 * r] = fma_rn(weight, v.x, o[i + 2 * r]);
              o[i + 2 * r + 1] = fma_rn(weight, v.y, o[i + 2 * r + 1]);
            }
          }
        }
      }
}
// [/rung: fma]

// [rung: mma]
// Returns columns 8 j to 8 j + 7 of an accumulator, as [16 rows, 8 columns].
template <int N> LAB_DEVICE float (&octet(float (&x)[N], int j))[4] {
  return reinterpret_cast<float (&)[N / 4][4]>(x)[j];
}
// Adds A B^T to s, for 16 rows of A from `row` on and all rows of B. s: [16 rows, 2 N keys].
template <class C, class A, class B, int N>
  requires (C::rung != Rung::fma)
LAB_DEVICE void add_abt(float (&s)[N], A& a, int row, B& b) {
  const int lane = thread_x() & 31;
#pragma unroll
  for (int d = 0; d < B::columns; d += 16) {  // channels
    const int column = d / atom_columns * atom_columns, c = d % atom_columns / chunk_elements;
    u32 left[4], right[4];  // [16 rows, or keys, 16 channels]
    ldmatrix_x4(left, a.chunk_at(row + (lane & 15), column, c + (lane >> 4)));
#pragma unroll
    for (int key = 0; key < B::rows; key += 16) {
      const int line = key + (lane & 7) + (lane >> 4) * 8;
      ldmatrix_x4(right, b.chunk_at(line, column, c + ((lane >> 3) & 1)));
      mma_m16n8k16<typename B::T>(octet(s, key / 8), left, right[0], right[1]);
      mma_m16n8k16<typename B::T>(octet(s, key / 8 + 1), left, right[2], right[3]);
    }
  }
}
// Adds P B to o. A fragment holds P of 16 rows and 16 keys. o: [16 rows, 2 N channels];
// p: [16 rows, 16 K keys].
template <class C, class B, int N, int K>
  requires (C::rung != Rung::fma)
LAB_DEVICE void add_ab(float (&o)[N], const u32 (&p)[K][4], B& b) {
  const int lane = thread_x() & 31;
#pragma unroll
  for (int k = 0; k < K; ++k)
#pragma unroll
    for (int d = 0; d < B::columns; d += 16) {
      const int column = d / atom_columns * atom_columns, c = d % atom_columns / chunk_elements;
      u32 right[4];  // [16 keys, 16 channels]
      ldmatrix_x4_trans(right, b.chunk_at(16 * k + (lane & 15), column, c + (lane >> 4)));
      mma_m16n8k16<typename B::T>(octet(o, d / 8), p[k], right[0], right[1]);
      mma_m16n8k16<typename B::T>(octet(o, d / 8 + 1), p[k], right[2], right[3]);
    }
}
// [/rung: mma]

// [rung: loop]
// A consumer warpgroup computes attention for 64 rows of the tile, key block by key block.
template <class C, class P>
  requires (C::rung < Rung::within)
LAB_DEVICE void consume(Smem<C>& smem, const PrefillParams& p, const typename C::Work& tile,
                        Progress& at) {
  using T = typename C::T;
  const int warpgroup = warp_uniform(thread_x() / 128) - 1, row = lane_row(warpgroup);
  OnlineSoftmax softmax;  // {m, l} of rows `row` and `row` + 8
  typename C::Output o = {};
  consumer_wait(smem.q_ring, at.tiles);
  for (KeyBlocks<C> keys(p, tile); keys.more(); keys.next(), ++at.blocks) {
    const u32 n = at.blocks;    // both rings are equally deep here
    typename C::Scores s = {};  // S = Q K^T
    consumer_wait(smem.k_ring, n);
    add_abt<C>(s, smem.q, row / 16 * 16, smem.k[n % C::stages]);
    consumer_release(smem.k_ring, n);
    if (keys.masked()) mask<C>(s, p, tile, row, keys.key);
    const Rescale rescale = softmax.update<P, T>(s, p.scale_log2);  // S becomes P, {m, l} follow
    rescale_rows(o, rescale);
    typename C::Fragments probabilities;
    round_to_fragments<T>(probabilities, s);
    consumer_wait(smem.v_ring, n);  // O += P V
    add_ab<C>(o, probabilities, smem.v[n % C::stages]);
    consumer_release(smem.v_ring, n);
  }
  consumer_release(smem.q_ring, at.tiles++);
  finish_rows<C, P>(o, softmax, p, tile, row, smem.is_last_split);
}
// [/rung: loop]

}  // namespace prefill_wgmma_basic

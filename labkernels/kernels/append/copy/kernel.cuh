// This kernel appends new keys and values to the pages of a cache and advances its lengths. Lane i
// of a warp looks up where the warp's key i goes; then all lanes move 16 bytes at a time.
#pragma once
#include "lab/attention/scales.cuh"
#include "lab/ampere/shared_tile.cuh"

namespace append {
using namespace lab;

// A side is K or V. Strides count elements; the last dimension is contiguous.
struct Side {
  const void* rows;  // [total_new, kv_heads, D]
  void* pool;        // [pages, page_size, kv_heads, D]
  i64 row_stride, row_stride_head;
  i64 stride_page, stride_token, stride_head;
  i64 head_chunks;  // D in chunks of 8 channels
};

struct Params {  // cuda.py mirrors this struct
  Side sides[2];
  const int* page_table;  // [batch, max_pages]
  const int* cu_seqlens;  // [batch + 1]: request i appends rows cu_seqlens[i] to [i + 1] - 1
  int* kv_len;            // [batch]
  int* ticket;            // blocks that have arrived; 0 between launches
  int page_table_stride, max_pages, page_size;
  int kv_heads, batch, keys_per_warp, blocks;
};

template <bool Narrow> struct ArgumentsOf { using type = Params; };
template <> struct ArgumentsOf<true> { using type = WithScales<Params>; };

// T and Code: the formats of the rows and of a cache of 8 bits; without them, bytes are copied.
template <int Warps, int Keys, int Stages, int BlocksPerSm, class T_ = u16, class Code_ = T_>
struct KernelTraits {
  using T = T_;
  using Code = Code_;
  static constexpr bool narrow = sizeof(Code) < sizeof(T);
  using Arguments = typename ArgumentsOf<narrow>::type;
  static constexpr int warps = Warps, keys = Keys, stages = Stages;
  static constexpr int threads = 32 * Warps, blocks_per_sm = BlocksPerSm;
  static_assert(Keys <= 32, "a lane looks up one key");
};

constexpr i64 nowhere = -1;

LAB_DEVICE const u32x4* chunk_at(const void* rows, i64 element) {
  return reinterpret_cast<const u32x4*>(static_cast<const u16*>(rows) + element);
}
LAB_DEVICE u32x4* chunk_at(void* rows, i64 element) {
  return reinterpret_cast<u32x4*>(static_cast<u16*>(rows) + element);
}

// Returns the request that appends row `key`: the last request that begins at or before that row,
// since a request without new keys begins where the next request begins.
LAB_DEVICE int request_of(const Params& p, int key) {
  int first = 0, end = p.batch;
  while (end - first > 1) {
    const int middle = (first + end) / 2;
    if (load_constant(p.cu_seqlens + middle) <= key) first = middle;
    else end = middle;
  }
  return first;
}

// Returns the place of row `key`, in elements from the pool's start, or `nowhere` past the last row
// or past the page table.
LAB_DEVICE i64 place(const Params& p, const Side& side, int key) {
  if (key >= load_constant(p.cu_seqlens + p.batch)) return nowhere;
  const int request = request_of(p, key);
  const int position =
      load_global(p.kv_len + request) + key - load_constant(p.cu_seqlens + request);
  const int slot = position / p.page_size;
  if (slot >= p.max_pages) return nowhere;
  const int* pages = p.page_table + static_cast<i64>(request) * p.page_table_stride;
  return load_constant(pages + slot) * side.stride_page +
         (position - slot * p.page_size) * side.stride_token;
}

// Divides 8 channels of a head by its scale, and stores their codes at an element of the pool.
template <class C>
LAB_DEVICE void store_codes(const WithScales<Params>& p, const Side& side, i64 element, int head,
                            const u32x4& moved) {
  const bool of_k = block_y() == 0;
  const float* scales = of_k ? p.scales.k_scale : p.scales.v_scale;
  const i64 stride = of_k ? p.scales.k_scale_stride : p.scales.v_scale_stride;
  const float scale = load_constant(scales + head * stride);
  u32x2 codes = {{0, 0}};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const f32x2 x = unpack2<typename C::T>(moved.v[i]);
    const u32 low = code_of<typename C::Code>(div_rn(x.x, scale));
    const u32 high = code_of<typename C::Code>(div_rn(x.y, scale));
    codes.v[i / 2] |= (low | high << 8) << i % 2 * 16;
  }
  store_global(reinterpret_cast<u32x2*>(static_cast<unsigned char*>(side.pool) + element), codes);
}

// [lab: move]
// Moves the rows of one warp; `place` is that of the lane's key. All loads of a step are in flight
// before its first store waits for a load.
template <class C>
LAB_DEVICE void move(const typename C::Arguments& p, const Side& side, int first_key, i64 place) {
  const int lane = thread_x() & 31, head_chunks = static_cast<int>(side.head_chunks);
  const int chunks = p.kv_heads * head_chunks, n = p.keys_per_warp * chunks;
  for (int begin = 0; begin < n; begin += 32 * C::stages) {
    u32x4 moved[C::stages];  // [stages, 8 channels]
    i64 to[C::stages];       // [stages]
    int of_head[C::stages];  // [stages]
#pragma unroll
    for (int i = 0; i < C::stages; ++i) {
      const int at = begin + i * 32 + lane, key = at / chunks, in_key = at - key * chunks;
      const int head = in_key / head_chunks;
      const int channel = (in_key - head * head_chunks) * chunk_elements;
      const i64 start = shfl(place, key < C::keys ? key : 0);
      to[i] = nowhere;
      if (at >= n || start == nowhere) continue;
      to[i] = start + head * side.stride_head + channel;
      of_head[i] = head;
      const i64 row = first_key + key;
      moved[i] = load_constant(
          chunk_at(side.rows, row * side.row_stride + head * side.row_stride_head + channel));
    }
#pragma unroll
    for (int i = 0; i < C::stages; ++i)
      if (to[i] != nowhere) {
        if constexpr (C::narrow) store_codes<C>(p, side, to[i], of_head[i], moved[i]);
        else store_global(chunk_at(side.pool, to[i]), moved[i]);
      }
  }
}
// [/lab: move]

// The block that arrives last writes the new lengths: by then every block has read the old ones.
LAB_DEVICE void advance(const Params& p) {
  sync_block();
  if (thread_x() >= 32) return;
  const int lane = thread_x();
  int arrived = 0;
  if (lane == 0) {
    fence_global();
    arrived = atomic_add_global(p.ticket, 1) + 1;
  }
  if (!warp_any(arrived == p.blocks)) return;
  if (lane == 0) store_global(p.ticket, 0);
  for (int i = lane; i < p.batch; i += 32) {
    const int n_new = load_constant(p.cu_seqlens + i + 1) - load_constant(p.cu_seqlens + i);
    store_global(p.kv_len + i, load_global(p.kv_len + i) + n_new);
  }
}

template <class C>
LAB_KERNEL(C::threads, C::blocks_per_sm) append(LAB_GRID_CONSTANT typename C::Arguments p) {
  static_assert(LAB_SMEM_BYTES == 0, "the ledger's bytes are the compiler's");
  const Side& side = p.sides[block_y()];
  const int lane = thread_x() & 31;
  const int first_key = (block_x() * C::warps + thread_x() / 32) * p.keys_per_warp;
  const i64 target = lane < p.keys_per_warp ? place(p, side, first_key + lane) : nowhere;
  move<C>(p, side, first_key, target);
  advance(p);
}

}  // namespace append

// This kernel appends new keys and values to the pages of a cache and advances its lengths. Lane i
// of a warp looks up where the warp's key i goes; then all lanes move 16 bytes at a time. On their
// way, keys may be rotated by angles of their positions, and so may the queries of the same rows.
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

struct Rotary {           // cuda.py mirrors this struct
  const void *cos, *sin;  // [positions, dim / 2]
  i64 cos_stride, sin_stride;
  Side queries;         // its pool is [total_new, heads, D]
  int positions, dim;   // the channels of a head from `dim` on are copied
  int heads, in_order;  // 0: all queries of a request have the position of its first new key
};
struct WithRotary : Params { Rotary rotary; };

// Channels c and c + dim / 2 rotate together, or channels 2 c and 2 c + 1.
enum class Pairs { none, halves, neighbours };

template <bool Narrow, bool Blocks, class P> struct ArgumentsOf { using type = P; };
template <class P> struct ArgumentsOf<true, false, P> { using type = WithScales<P>; };
template <class P> struct ArgumentsOf<true, true, P> { using type = WithBlockScales<P>; };
template <bool Rotates> struct PlainOf { using type = Params; };
template <> struct PlainOf<true> { using type = WithRotary; };

// T and Code: the formats of the rows and of a cache of 8 bits; without them, bytes are copied.
// Table: the format of the cosines and sines. Blocks: whether blocks of keys have scales, and not
// heads.
template <int Warps, int Keys, int Stages, int BlocksPerSm, class T_ = u16, class Code_ = T_,
          Pairs P = Pairs::none, class Table_ = float, bool Blocks = false>
struct KernelTraits {
  using T = T_;
  using Code = Code_;
  using Table = Table_;
  static constexpr Pairs pairs = P;
  static constexpr bool narrow = sizeof(Code) < sizeof(T), rotates = P != Pairs::none;
  static constexpr bool blocks = Blocks;
  using Arguments = typename ArgumentsOf<narrow, Blocks, typename PlainOf<rotates>::type>::type;
  static constexpr int warps = Warps, keys = Keys, stages = Stages;
  static constexpr int threads = 32 * Warps, blocks_per_sm = BlocksPerSm;
  static_assert(Keys <= 32, "a lane looks up one key");
};

constexpr i64 nowhere = -1;
constexpr int values = 1, queries = 2;  // blocks along grid y; keys come first

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

template <class C> LAB_DEVICE const Side& side_of(const typename C::Arguments& p) {
  if constexpr (C::rotates)
    if (block_y() == queries) return p.rotary.queries;
  return p.sides[block_y()];
}

// Returns the place of row `key`, in elements from the pool's start, or `nowhere` past the last
// row, the page table or the cosines; `position` becomes the one that the row is rotated at,
// and `scale` the place of its scale, if blocks of keys have scales.
template <class C>
LAB_DEVICE i64 place(const typename C::Arguments& p, const Side& side, int key, int& position,
                     i64& scale) {
  if (key >= load_constant(p.cu_seqlens + p.batch)) return nowhere;
  const int request = request_of(p, key);
  position = load_global(p.kv_len + request) + key - load_constant(p.cu_seqlens + request);
  if constexpr (C::rotates) {
    if (position >= p.rotary.positions) return nowhere;
    if (block_y() == queries) {
      if (!p.rotary.in_order) position = load_global(p.kv_len + request);
      return key * side.stride_token;
    }
  }
  const int slot = position / p.page_size;
  if (slot >= p.max_pages) return nowhere;
  const int* pages = p.page_table + static_cast<i64>(request) * p.page_table_stride;
  const int page = load_constant(pages + slot), token = position - slot * p.page_size;
  if constexpr (C::blocks) scale = p.block_scales.of_slot(page, token);
  return page * side.stride_page + token * side.stride_token;
}

// Returns the scale of a head, or of a head and of a block of keys.
template <class P> LAB_DEVICE float scale_of(const WithScales<P>& p, int head, i64) {
  const bool of_k = block_y() == 0;
  const float* scales = of_k ? p.scales.k_scale : p.scales.v_scale;
  const i64 stride = of_k ? p.scales.k_scale_stride : p.scales.v_scale_stride;
  return load_constant(scales + head * stride);
}
template <class P> LAB_DEVICE float scale_of(const WithBlockScales<P>& p, int head, i64 block) {
  const BlockScales& of = p.block_scales;
  return load_constant((block_y() == 0 ? of.k_scale : of.v_scale) + block + head * of.stride_head);
}

// Divides 8 channels by their scale, and stores their codes at an element of the pool.
template <class C>
LAB_DEVICE void store_codes(const Side& side, i64 element, float scale, const u32x4& moved) {
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

// Loads N numbers from an element of a table on.
template <class Table, int N>
LAB_DEVICE void load_numbers(float (&x)[N], const void* table, i64 element) {
#pragma unroll
  for (int i = 0; i < N; ++i) {
    if constexpr (sizeof(Table) == 4)
      x[i] = load_constant(static_cast<const float*>(table) + element + i);
    else x[i] = unpack2<Table>(load_constant(static_cast<const u16*>(table) + element + i)).x;
  }
}

// Rotates 8 channels by the angles of a position: a becomes a cos - b sin, and b becomes
// b cos + a sin, with products and sum rounded to fp32. `other` holds the partners of halves.
template <class C>
LAB_DEVICE void rotate(u32x4& x, const u32x4& other, const Rotary& by, int position, int channel) {
  constexpr bool halves = C::pairs == Pairs::halves;
  const bool second = halves && channel >= by.dim / 2;
  const i64 angle = halves ? channel - (second ? by.dim / 2 : 0) : channel / 2;
  float cos[halves ? 8 : 4], sin[halves ? 8 : 4];
  load_numbers<typename C::Table>(cos, by.cos, position * by.cos_stride + angle);
  load_numbers<typename C::Table>(sin, by.sin, position * by.sin_stride + angle);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const f32x2 own = unpack2<typename C::T>(x.v[i]), far = unpack2<typename C::T>(other.v[i]);
    const float low = halves ? far.x : own.y, high = halves ? far.y : own.x;
    const int a = halves ? 2 * i : i, b = halves ? 2 * i + 1 : i;
    x.v[i] = pack2<typename C::T>(own.x * cos[a] + low * (second ? sin[a] : -sin[a]),
                                  own.y * cos[b] + high * (halves && !second ? -sin[b] : sin[b]));
  }
}

// [lab: move]
// Moves the rows of one warp; `place` is that of the lane's key. All loads of a step are in flight
// before its first store waits for a load.
template <class C>
LAB_DEVICE void move(const typename C::Arguments& p, const Side& side, int first_key, i64 place,
                     int position, i64 scale_place) {
  const int lane = thread_x() & 31, head_chunks = static_cast<int>(side.head_chunks);
  int heads = p.kv_heads;
  if constexpr (C::rotates) heads = block_y() == queries ? p.rotary.heads : heads;
  const int chunks = heads * head_chunks, n = p.keys_per_warp * chunks;
  for (int begin = 0; begin < n; begin += 32 * C::stages) {
    u32x4 moved[C::stages];    // [stages, 8 channels]
    i64 to[C::stages];         // [stages]
    int of_head[C::stages];    // [stages]
    u32x4 other[C::stages];    // [stages, 8 channels]
    int angles[C::stages][2];  // [stages, position and channel]
    i64 scale[C::stages];      // [stages], of blocks of keys
#pragma unroll
    for (int i = 0; i < C::stages; ++i) {
      const int at = begin + i * 32 + lane, key = at / chunks, in_key = at - key * chunks;
      const int head = in_key / head_chunks;
      const int channel = (in_key - head * head_chunks) * chunk_elements;
      const i64 start = shfl(place, key < C::keys ? key : 0);
      const int rotated_at = C::rotates ? shfl(position, key < C::keys ? key : 0) : 0;
      scale[i] = C::blocks ? shfl(scale_place, key < C::keys ? key : 0) : 0;
      to[i] = nowhere;
      if (at >= n || start == nowhere) continue;
      to[i] = start + head * side.stride_head + channel;
      of_head[i] = head;
      const i64 row = first_key + key;
      moved[i] = load_constant(
          chunk_at(side.rows, row * side.row_stride + head * side.row_stride_head + channel));
      if constexpr (C::rotates) {
        const int half = p.rotary.dim / 2, far = channel + (channel < half ? half : -half);
        angles[i][0] = rotated_at;
        angles[i][1] = block_y() == values ? p.rotary.dim : channel;
        other[i] = moved[i];
        if (C::pairs == Pairs::halves && angles[i][1] < 2 * half)
          other[i] = load_constant(
              chunk_at(side.rows, row * side.row_stride + head * side.row_stride_head + far));
      }
    }
#pragma unroll
    for (int i = 0; i < C::stages; ++i)
      if (to[i] != nowhere) {
        if constexpr (C::rotates)
          if (angles[i][1] < p.rotary.dim)
            rotate<C>(moved[i], other[i], p.rotary, angles[i][0], angles[i][1]);
        if constexpr (C::narrow)
          if (!C::rotates || block_y() != queries) {
            store_codes<C>(side, to[i], scale_of(p, of_head[i], scale[i]), moved[i]);
            continue;
          }
        store_global(chunk_at(side.pool, to[i]), moved[i]);
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
  const Side& side = side_of<C>(p);
  const int lane = thread_x() & 31;
  const int first_key = (block_x() * C::warps + thread_x() / 32) * p.keys_per_warp;
  int position = 0;
  i64 scale = 0;
  const i64 target =
      lane < p.keys_per_warp ? place<C>(p, side, first_key + lane, position, scale) : nowhere;
  move<C>(p, side, first_key, target, position, scale);
  advance(p);
}

}  // namespace append

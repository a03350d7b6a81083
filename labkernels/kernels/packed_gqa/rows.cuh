// This file has the rows and keys that a block of a prefill computes. A request's rows are packed:
// row r is token r / group and query head r % group of the KV head's group, so that a tile of one
// KV head serves all its query heads.
#pragma once
#include "lab/ampere/shared_tile.cuh"
#include "lab/attention/split_kv.cuh"
#include "lab/attention/variant.cuh"

namespace lab {

// The host's plan lists these items in the order in which blocks take them.
struct alignas(16) PrefillWork { int request, q_tile, kv_head, split; };

// Strides count elements; the last dimension is contiguous. kernels/prefill/cuda.py mirrors this
// struct.
struct PrefillParams {
  const void* q;            // [total_q, q_heads, Dqk]
  const void *k, *v;        // [total_k, kv_heads, D], or [pages, page_size, kv_heads, D]
  const int* cu_seqlens_q;  // [batch + 1]
  const int* cu_seqlens_k;  // [batch + 1], ragged K and V alone
  const int* page_table;    // [batch, max_pages], paged K and V alone
  const int* kv_len;        // [batch], paged K and V alone
  const PrefillWork* work;  // [work tiles]
  void* out;                // [total_q, q_heads, Dvo]
  float* lse2;              // [total_q, q_heads], base 2
  float* partial_o;         // [total_q, q_heads, splits, Dvo], not yet divided by l
  float* partial_m;         // [total_q, q_heads, splits], log2 units
  float* partial_l;         // [total_q, q_heads, splits]
  int* split_semaphores;    // semaphore_index: splits that have arrived; 0 between launches
  i64 q_stride_token, q_stride_head;
  i64 k_stride_page, k_stride_token, k_stride_head;
  i64 v_stride_page, v_stride_token, v_stride_head;
  int page_table_stride, max_pages, page_size;
  int page_shift;    // 2^page_shift >= page_size, and
  u32 page_inverse;  // 2^(31 + page_shift) / page_size, rounded up
  int q_heads, kv_heads, group;
  int group_shift;  // as page_shift and page_inverse, for group
  u32 group_inverse;
  int keys_per_split, splits;
  int causal;        // query i of n with L keys sees keys 0 to L - n + i
  float scale_log2;  // softmax scale times log2 e
};

enum class KeyOrder { ascending, descending };  // how a block walks over its keys

// A block computes this part of the problem: `Rows` packed rows of one request and KV head, over
// one split of the keys. The functions below also serve MlaParams (mla/pipeline.cuh).
template <int Rows> struct WorkTile {
  int request, q_tile, kv_head, split;
  int tile_rows;              // used rows of the tile's Rows
  int first_row, n_rows;      // of the request's packed rows; fewer than tile_rows at their end
  i64 first_token, first_kv;  // the request's first row in q, and in ragged k and v
  int kv_len, past;           // past: keys before the last key that token 0 sees
  int first_key, end_key;     // of the split, up to the last key that a row of the tile sees
  int live_splits;            // splits that hold keys which the tile's rows see
};

// Returns n / divisor for n below 2^31, without a division: `division` of kernels/checks.py makes
// `inverse` and `shift`.
LAB_DEVICE u32 quotient(u32 n, u32 inverse, int shift) {
  return static_cast<u32>(u64{2 * n} * inverse >> 32) >> shift;
}

// Returns the slot of a key's page in the request's row of the page table.
template <class Params> LAB_DEVICE u32 page_slot(const Params& p, u32 key) {
  return quotient(key, p.page_inverse, p.page_shift);
}

// Returns the token of a packed row.
template <class Params> LAB_DEVICE int token_of(const Params& p, int packed) {
  return static_cast<int>(quotient(packed, p.group_inverse, p.group_shift));
}

// Returns a row's place: the number of the last key that it would see under a causal mask.
template <class Params, int Rows>
LAB_DEVICE int place_of(const Params& p, const WorkTile<Rows>& b, int row) {
  return b.past + token_of(p, b.first_row + row);
}

// A row sees the keys below this number, which is at least 0.
template <class V = Plain, class Params, int Rows>
LAB_DEVICE int row_limit(const Params& p, const WorkTile<Rows>& b, int row) {
  int limit = 1;
  if constexpr (V::window) limit = 1 + p.variant.window_right;
  else if (!p.causal) return b.kv_len;
  limit = place_of(p, b, row) + limit;
  return limit > 0 ? least(limit, b.kv_len) : 0;
}

// A row sees the keys from this number on.
template <class V, class Params, int Rows>
LAB_DEVICE int row_begin(const Params& p, const WorkTile<Rows>& b, int row) {
  if constexpr (V::window) return greatest(place_of(p, b, row) - p.variant.window_left, 0);
  else return 0;
}

// Reads a row's bits of the mask: bit i of the words says whether the row sees key `key` + i.
template <int Words, class Params, int Rows>
LAB_DEVICE void load_bits(u32 (&bits)[Words], const Params& p, const WorkTile<Rows>& b, int row,
                          int key) {
  const i64 begin = load_constant(p.variant.mask_begins + b.request);
  const i64 first = begin + i64{token_of(p, b.first_row + row)} * b.kv_len + key;
  const i64 word = first / 32;
  u32 low = word < p.variant.mask_words ? load_constant(p.variant.mask + word) : 0;
#pragma unroll
  for (int i = 0; i < Words; ++i) {
    const i64 next = word + i + 1;
    const u32 high = next < p.variant.mask_words ? load_constant(p.variant.mask + next) : 0;
    bits[i] = static_cast<u32>((u64{high} << 32 | low) >> (first % 32));
    low = high;
  }
}

// Returns the query head of a row; rows past the request's end have heads, too.
template <class Params, int Rows>
LAB_DEVICE int query_head(const Params& p, const WorkTile<Rows>& b, int row) {
  const int packed = b.first_row + row;
  return b.kv_head * p.group + packed - token_of(p, packed) * p.group;
}

// Returns the part that an item of the work list names; `tile_rows` of a tile's rows are used.
// Keys: the first split begins at a multiple of it.
template <int Rows, bool Paged, class V = Plain, int Keys = 1, class Params>
LAB_DEVICE WorkTile<Rows> work_tile(const Params& p, int index = block_x(), int tile_rows = Rows) {
  const u32x4 item = load_constant(reinterpret_cast<const u32x4*>(p.work + index));
  WorkTile<Rows> b;
  b.request = static_cast<int>(item.v[0]);
  b.q_tile = static_cast<int>(item.v[1]);
  b.kv_head = static_cast<int>(item.v[2]);
  b.split = static_cast<int>(item.v[3]);
  b.first_token = load_constant(p.cu_seqlens_q + b.request);
  const int n = load_constant(p.cu_seqlens_q + b.request + 1) - static_cast<int>(b.first_token);
  b.tile_rows = tile_rows;
  b.first_row = b.q_tile * tile_rows;
  b.n_rows = least(tile_rows, n * p.group - b.first_row);
  b.first_kv = 0;
  if constexpr (Paged) {
    b.kv_len = load_constant(p.kv_len + b.request);
  } else {
    b.first_kv = load_constant(p.cu_seqlens_k + b.request);
    b.kv_len = load_constant(p.cu_seqlens_k + b.request + 1) - static_cast<int>(b.first_kv);
  }
  b.past = b.kv_len - n;
  const int first = row_begin<V>(p, b, 0) / Keys * Keys;
  b.first_key = first + b.split * p.keys_per_split;
  const int visible = row_limit<V>(p, b, b.n_rows - 1);
  b.end_key = least(b.first_key + p.keys_per_split, visible);
  b.live_splits = (visible - first + p.keys_per_split - 1) / p.keys_per_split;
  return b;
}

// Returns whether the split holds none of the tile's keys. The first split is never idle, because
// it writes the zeros of rows without keys.
template <int Rows> LAB_DEVICE bool is_idle(const WorkTile<Rows>& b) {
  return b.split > 0 && b.first_key >= b.end_key;
}

// Begins the softmax of a lane's rows, of which the first is row `first_row` of the tile: finds
// their slopes and sinks. Of a row's splits the first begins with the sink, and of its warps, if
// they split the keys, the first: `first` says whether this warp does.
template <class V, class Lanes, int Rows, class Params>
LAB_DEVICE void begin_rows(OnlineSoftmaxOf<Lanes>& softmax, Slope (&slopes)[Lanes::rows],
                           const Params& p, const WorkTile<Rows>& b, int first_row,
                           bool first = true) {
#pragma unroll
  for (int r = 0; r < Lanes::rows; ++r) {
    const int row = first_row + Lanes::row(r), head = query_head(p, b, row);
    if constexpr (V::by_distance) slopes[r] = slope_of<V>(p, head, place_of(p, b, row));
    if constexpr (V::sinks)
      if (b.split == 0 && first) begin_with_sink(softmax, r, p, head);
  }
}

template <int Rows> LAB_DEVICE int row_count(const WorkTile<Rows>& b) { return b.n_rows; }

// Returns a row's place in [total_q, q_heads].
template <class Params, int Rows>
LAB_DEVICE i64 head_index(const Params& p, const WorkTile<Rows>& b, int row) {
  const int packed = b.first_row + row, token = token_of(p, packed);
  return (b.first_token + token) * p.q_heads + b.kv_head * p.group + (packed - token * p.group);
}

// Returns the number of a tile's semaphore. The tiles of the requests before this one are at most
// first_token * group / tile_rows, rounded down, plus one per request.
template <class Params, int Rows>
LAB_DEVICE i64 semaphore_index(const Params& p, const WorkTile<Rows>& b) {
  return (b.first_token * p.group / b.tile_rows + b.request + b.q_tile) * p.kv_heads + b.kv_head;
}

// Copies the tile of Q, in one copy group per thread. Rows past the request's end are zero.
template <class T, int D, int Rows, int Threads>
LAB_DEVICE void load_query(T (&tile)[Rows][D], const PrefillParams& p, const WorkTile<Rows>& b) {
  constexpr int chunks = D / chunk_elements;
  const T* q = static_cast<const T*>(p.q) + b.kv_head * p.group * p.q_stride_head;
  for (int i = thread_x(); i < Rows * chunks; i += Threads) {
    const int row = i / chunks, c = i % chunks;
    const int packed = b.first_row + row, token = token_of(p, packed);
    const T* source = q + (b.first_token + token) * p.q_stride_token +
                      (packed - token * p.group) * p.q_stride_head + c * chunk_elements;
    cp_async_16(chunk<D>(tile, row, c), source, row < b.n_rows && in_head<D>(c * chunk_elements));
  }
  cp_async_commit();
}

// Stores two neighbouring channels of a row's output.
LAB_DEVICE void store2(float* p, float x, float y) {
  const u32x2 pair = {{float_to_bits(x), float_to_bits(y)}};
  store_global(reinterpret_cast<u32x2*>(p), pair);
}
template <class T> LAB_DEVICE void store2(T* p, float x, float y) {
  store_global(reinterpret_cast<u32*>(p), pack2<T>(x, y));
}

}  // namespace lab

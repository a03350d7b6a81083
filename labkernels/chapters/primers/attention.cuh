// This is the primer's attention, in fp32: a block computes four rows of one KV head, and a warp
// one row. A lane has one key of the tile while the scores are computed, and one channel during P
// V. Each marked region is a phase, which an assignment lets its reader write.
#pragma once
#include "lab/attention/online_softmax.cuh"

namespace small_attention {
using namespace lab;

constexpr int dim = 32, keys = 32, rows = 4, threads = 32 * rows;

struct Params {
  const float* q;       // [n_queries, kv_heads * group, dim]
  const float* k_pool;  // [pages, page_size, kv_heads, dim]
  const float* v_pool;
  const int* page_table;  // [pages of the request]
  float* out;             // [n_queries, kv_heads * group, dim]
  float* lse2;            // [n_queries, kv_heads * group]
  float* partial_o;       // [n_queries, kv_heads * group, splits, dim]
  float* partial_m;       // [n_queries, kv_heads * group, splits]
  float* partial_l;
  int n_queries, group, kv_heads, kv_len, page_size, keys_per_split, splits, causal;
  float scale;
};

struct Smem {
  float q[rows][dim];
  float k[keys][dim + 1];  // one word of padding: 32 lanes read 32 rows in 32 banks
  float v[keys][dim];
  float p[rows][keys];
};

// The online softmax of a row. A lane has l of its own keys, and o of its own channel.
struct State { float m, l, o; };

// [lab: all]
// [lab: packing]
// The query token and the query head of a packed row.
struct Row { int token, head; };
LAB_DEVICE Row row_of(int packed, int kv_head, int group) {
  return {packed / group, kv_head * group + packed % group};
}
// [/lab: packing]

// [lab: page]
// Returns where the channels of a key begin in the pool, in elements.
LAB_DEVICE i64 offset_of(const Params& p, int key, int kv_head) {
  const i64 page = load_constant(p.page_table + key / p.page_size);
  return ((page * p.page_size + key % p.page_size) * p.kv_heads + kv_head) * dim;
}
// [/lab: page]

// [lab: load]
// Loads the tile of 32 keys that begins at `first`. Keys from `end` on are zeros.
LAB_DEVICE void load_tile(Smem& smem, const Params& p, int first, int end, int kv_head) {
  for (int i = thread_x(); i < keys * dim; i += threads) {
    const int key = i / dim, channel = i % dim;
    float k = 0.f, v = 0.f;
    if (first + key < end) {
      const i64 at = offset_of(p, first + key, kv_head) + channel;
      k = load_constant(p.k_pool + at);
      v = load_constant(p.v_pool + at);
    }
    smem.k[key][channel] = k;
    smem.v[key][channel] = v;
  }
}
// [/lab: load]

// [lab: score]
// Returns the dot product of the warp's row of q and the lane's key.
LAB_DEVICE float score(const Smem& smem, int warp, int lane) {
  float s = 0.f;
  for (int d = 0; d < dim; ++d) s = fma_rn(smem.q[warp][d], smem.k[lane][d], s);
  return s;
}
// [/lab: score]

// [lab: log2]
// Returns a score x in log2 units: 2^x = e^(scale * s).
LAB_DEVICE float in_log2_units(float s, float scale) { return s * (scale * 1.44269504f); }
// [/lab: log2]

// [lab: causal]
// Returns how many keys a query token sees. The last token sees all keys.
LAB_DEVICE int keys_seen(int token, int n_queries, int kv_len) {
  return kv_len - n_queries + token + 1;
}
// [/lab: causal]

// [lab: mask]
// Returns the score of a key that the row sees, and minus infinity for the other keys.
LAB_DEVICE float masked(float s, int key, int end) { return key < end ? s : minus_infinity(); }
// [/lab: mask]

// [lab: maximum]
// Returns, in every lane, the largest of m and the scores of the warp's 32 lanes.
LAB_DEVICE float raised(float m, float s) {
  for (int mask = 16; mask > 0; mask /= 2) s = maximum(s, shfl_xor(s, mask));
  return maximum(m, s);
}
// [/lab: maximum]

// [lab: update]
// Adds the lane's score to the state, and returns the score's weight P.
LAB_DEVICE float update(State& state, float s) {
  const float m = raised(state.m, s);
  const float rescale = ex2_approx(state.m - m), weight = ex2_approx(s - m);
  state.m = m;
  state.l = fma_rn(state.l, rescale, weight);
  state.o = state.o * rescale;
  return weight;
}
// [/lab: update]

// [lab: accumulate]
// Computes o += P V for the lane's channel.
LAB_DEVICE void accumulate(State& state, const Smem& smem, int warp, int lane) {
  for (int key = 0; key < keys; ++key)
    state.o = fma_rn(smem.p[warp][key], smem.v[key][lane], state.o);
}
// [/lab: accumulate]

// [lab: loop]
// Goes through K and V tile by tile.
LAB_DEVICE void walk(Smem& smem, State& state, const Params& p, int first, int end, int seen) {
  const int warp = thread_x() / 32, lane = thread_x() % 32;
  for (int key = first; key < end; key += keys) {
    load_tile(smem, p, key, end, block_y());
    sync_block();  // the tile is there, for every warp
    const float s = in_log2_units(score(smem, warp, lane), p.scale);
    smem.p[warp][lane] = update(state, masked(s, key + lane, seen));
    sync_warp();  // P is there, for every lane
    accumulate(state, smem, warp, lane);
    sync_block();  // no warp reads the tile any more
  }
}
// [/lab: loop]

// [lab: merge]
// Returns the state of the keys of a and b together.
LAB_DEVICE State merge(const State& a, const State& b) {
  const float m = maximum(a.m, b.m);
  const float of_a = ex2_approx(a.m - m), of_b = ex2_approx(b.m - m);
  return {m, fma_rn(a.l, of_a, b.l * of_b), fma_rn(a.o, of_a, b.o * of_b)};
}
// [/lab: merge]

// [lab: kernel]
LAB_KERNEL(threads, 1) attend(LAB_GRID_CONSTANT Params p) {
  auto& smem = shared_memory<Smem>();
  const int warp = thread_x() / 32, lane = thread_x() % 32;
  const Row row = row_of(block_x() * rows + warp, block_y(), p.group);
  const i64 head = static_cast<i64>(row.token) * p.kv_heads * p.group + row.head;
  const bool live = row.token < p.n_queries;
  smem.q[warp][lane] = live ? load_constant(p.q + head * dim + lane) : 0.f;

  const int first = block_z() * p.keys_per_split;
  const int end = first + p.keys_per_split < p.kv_len ? first + p.keys_per_split : p.kv_len;
  const int limit = p.causal ? keys_seen(row.token, p.n_queries, p.kv_len) : p.kv_len;
  State state = {lowest_score(), 0.f, 0.f};
  walk(smem, state, p, first, end, limit < end ? limit : end);
  for (int mask = 16; mask > 0; mask /= 2) state.l = state.l + shfl_xor(state.l, mask);
  if (!live) return;
  const i64 slot = head * p.splits + block_z();
  store_global(p.partial_o + slot * dim + lane, state.o);
  if (lane == 0) {
    store_global(p.partial_m + slot, state.m);
    store_global(p.partial_l + slot, state.l);
  }
}
// [/lab: kernel]
// [/lab: all]

// One warp per row merges the states of the row's splits, and divides o by l.
LAB_KERNEL(32, 1) merge_splits(LAB_GRID_CONSTANT Params p) {
  const i64 head = block_x();
  const int lane = thread_x();
  State all = {lowest_score(), 0.f, 0.f};
  for (int split = 0; split < p.splits; ++split) {
    const i64 slot = head * p.splits + split;
    all = merge(all, {load_constant(p.partial_m + slot), load_constant(p.partial_l + slot),
                      load_constant(p.partial_o + slot * dim + lane)});
  }
  store_global(p.out + head * dim + lane, all.l == 0.f ? 0.f : div_rn(all.o, all.l));
  const float log2_l = all.l == all.l ? log2_poly(all.l) : all.l;  // log2_poly takes no NaN
  if (lane == 0) store_global(p.lse2 + head, all.l == 0.f ? minus_infinity() : all.m + log2_l);
}

}  // namespace small_attention

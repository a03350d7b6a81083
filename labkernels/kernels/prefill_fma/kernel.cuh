// Prefill, tensor cores off: fp32 FMAs on CUDA cores, P never rounded. Q, K and V are widened once,
// on their way to shared memory. A warp owns whole rows of the tile; a lane computes a block of
// scores and then one of the output, so that what it reads of shared memory serves many FMAs.
// Lanes: the even ones have other rows than the odd ones; 16 of a kind share a row's keys and
// channels, so that the lanes that a load of 16 bytes serves at once need few different ones.
#pragma once
#include "lab/prefill.cuh"

namespace prefill_fma {
using namespace lab;

constexpr int columns = 16;                      // lanes that share a row
constexpr int padding = 4;                       // floats: 8 lanes read 8 rows in 32 banks

template <class T_, int Dqk, int Dvo, int Rows, int Keys, int Warps, int Stages, int BlocksPerSm,
          Walk Walk_, bool Paged>
struct Tile {
  using T = T_;                                  // of Q, K and V
  static constexpr int dim_qk = Dqk, dim_vo = Dvo, rows = Rows, keys = Keys, warps = Warps;
  static constexpr int threads = 32 * Warps, blocks_per_sm = BlocksPerSm;
  static constexpr int lane_rows = Rows / Warps / 2, lane_keys = Keys / columns;
  static constexpr int quads = Dvo / columns / 4;  // of a lane's output channels
  static constexpr int unroll = Dqk <= 128 ? 4 : Dqk == Dvo ? 2 : 1;  // as registers are left
  static constexpr Walk walk = Walk_;
  static constexpr bool paged = Paged;
  using Block = PrefillBlock<Rows>;
  static_assert(Stages == 1, "registers hold the K or V that comes next");
  static_assert(Rows % (2 * Warps) == 0 && 4 % lane_keys == 0 && Dvo % 64 == 0, "whole lanes");
};

template <class C> struct Smem {
  alignas(16) float q[C::rows][C::dim_qk + padding];
  alignas(16) float k[C::keys][C::dim_qk + padding];
  alignas(16) float v[C::keys][C::dim_vo];
  alignas(16) float p[C::rows][C::keys];         // entry lane_keys * column + j: key 16 j + column
};

template <class C> struct State {                // of this lane's rows
  float m[C::lane_rows], l[C::lane_rows];        // l: this lane's keys only
  float o[C::lane_rows][C::quads][4];
};
template <class C> using Scores = float[C::lane_rows][C::lane_keys];

LAB_DEVICE int column() { return (thread_x() & 31) / 2; }
template <class C> LAB_DEVICE int tile_row(int i) {
  return (thread_x() / 32 * C::lane_rows + i) * 2 + (thread_x() & 1);
}
LAB_DEVICE f32x4 read4(const float* p) { return *reinterpret_cast<const f32x4*>(p); }

template <class T> LAB_DEVICE void widen(float* to, const u32x4& pairs) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const f32x2 low = unpack2<T>(pairs.v[2 * half]), high = unpack2<T>(pairs.v[2 * half + 1]);
    const f32x4 quad = {{low.x, low.y, high.x, high.y}};
    *reinterpret_cast<f32x4*>(to + 4 * half) = quad;
  }
}

template <class C>
LAB_DEVICE void load_query(Smem<C>& smem, const PrefillParams& p, const typename C::Block& b) {
  using T = typename C::T;
  constexpr int chunks = C::dim_qk / chunk_elements;
  const T* q = static_cast<const T*>(p.q) + b.kv_head * p.group * p.q_stride_head;
  for (int i = thread_x(); i < C::rows * chunks; i += C::threads) {
    const int row = i / chunks, c = i % chunks * chunk_elements;
    const int packed = b.first_row + row, token = packed / p.group;
    u32x4 pairs = {};                            // rows past the request's end
    if (row < b.n_rows)
      pairs = load_constant(reinterpret_cast<const u32x4*>(
          q + (b.first_token + token) * p.q_stride_token +
          (packed - token * p.group) * p.q_stride_head + c));
    widen<T>(smem.q[row] + c, pairs);
  }
}

// Where the rows of K or V of one request and KV head lie.
template <class T> struct KvRows {
  const T* first;
  const int* pages;
  i64 stride_page, stride_token;
  int page_size;

  template <bool Paged> LAB_DEVICE const T* row(int key) const {
    if constexpr (!Paged) return first + key * stride_token;
    const int slot = key / page_size;
    return first + load_constant(pages + slot) * stride_page +
           (key - slot * page_size) * stride_token;
  }
};

// A thread's part of a step's K or V, on its way from global to shared memory.
template <class C, int D> struct Parcel {
  using T = typename C::T;
  static constexpr int chunks = D / chunk_elements, all = C::keys * chunks;
  static constexpr int passes = (all + C::threads - 1) / C::threads;
  u32x4 part[passes];

  // Keys that no row sees are zeros: a masked P of zero times a stale NaN would still be NaN.
  LAB_DEVICE void load(const KvRows<T>& from, int first_key, int end_key) {
#pragma unroll
    for (int pass = 0; pass < passes; ++pass) {
      const int i = pass * C::threads + thread_x(), key = first_key + i / chunks;
      part[pass] = {};
      if (i < all && key < end_key)
        part[pass] = load_constant(reinterpret_cast<const u32x4*>(
            from.template row<C::paged>(key) + i % chunks * chunk_elements));
    }
  }
  template <int Pitch> LAB_DEVICE void store(float (&tile)[C::keys][Pitch]) const {
#pragma unroll
    for (int pass = 0; pass < passes; ++pass) {
      const int i = pass * C::threads + thread_x();
      if (i < all) widen<T>(tile[i / chunks] + i % chunks * chunk_elements, part[pass]);
    }
  }
};

// [lab: scores]
// S = Q K^T: s[i][j] is the score of the lane's row i and key 16 j + column.
template <class C> LAB_DEVICE void scores(Scores<C>& s, const Smem<C>& smem) {
#pragma unroll
  for (int i = 0; i < C::lane_rows; ++i)
#pragma unroll
    for (int j = 0; j < C::lane_keys; ++j) s[i][j] = 0.f;
#pragma unroll C::unroll
  for (int d = 0; d < C::dim_qk; d += 4) {
    f32x4 q[C::lane_rows];
#pragma unroll
    for (int i = 0; i < C::lane_rows; ++i) q[i] = read4(smem.q[tile_row<C>(i)] + d);
#pragma unroll
    for (int j = 0; j < C::lane_keys; ++j) {
      const f32x4 k = read4(smem.k[j * columns + column()] + d);
#pragma unroll
      for (int c = 0; c < 4; ++c)
#pragma unroll
        for (int i = 0; i < C::lane_rows; ++i) s[i][j] = fma_rn(q[i].v[c], k.v[c], s[i][j]);
    }
  }
}
// [/lab: scores]

template <class C>
LAB_DEVICE void mask(Scores<C>& s, const PrefillParams& p, const typename C::Block& b, int key) {
#pragma unroll
  for (int i = 0; i < C::lane_rows; ++i) {
    const int limit = least(row_limit(p, b, tile_row<C>(i)), b.end_key);
#pragma unroll
    for (int j = 0; j < C::lane_keys; ++j)
      if (key + j * columns + column() >= limit) s[i][j] = minus_infinity();
  }
}

// [lab: update]
// Folds the scores into (m, l), rescales o where a maximum moved, and leaves P in shared memory.
template <class C, class P>
LAB_DEVICE void update(State<C>& state, Scores<C>& s, Smem<C>& smem, float scale_log2) {
  float rescale[C::lane_rows];
  bool moved = false;
#pragma unroll
  for (int i = 0; i < C::lane_rows; ++i) {
    float top = s[i][0];
#pragma unroll
    for (int j = 1; j < C::lane_keys; ++j) top = maximum(top, s[i][j]);
#pragma unroll
    for (int mask = columns; mask > 1; mask /= 2) top = maximum(top, shfl_xor(top, mask));
    const float m = maximum(state.m[i], top * scale_log2), shift = shift_of(m);
    rescale[i] = rescale_of<P>(state.m[i], m);
    moved = moved || !(rescale[i] == 1.f);
    state.m[i] = m;
    state.l[i] = state.l[i] * rescale[i];
    float* row = smem.p[tile_row<C>(i)] + column() * C::lane_keys;
#pragma unroll
    for (int j = 0; j < C::lane_keys; ++j) {
      s[i][j] = exp2<P>(fma_rn(s[i][j], scale_log2, -shift));
      state.l[i] = state.l[i] + s[i][j];
    }
    if constexpr (C::lane_keys == 4) {
      const f32x4 quad = {{s[i][0], s[i][1], s[i][2], s[i][3]}};
      *reinterpret_cast<f32x4*>(row) = quad;
    } else {
#pragma unroll
      for (int j = 0; j < C::lane_keys; ++j) row[j] = s[i][j];
    }
  }
  if (warp_any(moved)) {                         // times 1 changes no bit: skip it
#pragma unroll
    for (int i = 0; i < C::lane_rows; ++i)
#pragma unroll
      for (int n = 0; n < C::quads; ++n)
#pragma unroll
        for (int c = 0; c < 4; ++c) state.o[i][n][c] = state.o[i][n][c] * rescale[i];
  }
}
// [/lab: update]

// [lab: accumulate]
// O += P V, four keys at a time: those whose P stand side by side.
template <class C> LAB_DEVICE void accumulate(State<C>& state, const Smem<C>& smem) {
#pragma unroll C::unroll
  for (int first = 0; first < C::keys; first += 4) {
    f32x4 p[C::lane_rows];
#pragma unroll
    for (int i = 0; i < C::lane_rows; ++i) p[i] = read4(smem.p[tile_row<C>(i)] + first);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int key = e % C::lane_keys * columns + (first + e) / C::lane_keys;
#pragma unroll
      for (int n = 0; n < C::quads; ++n) {
        const f32x4 v = read4(smem.v[key] + (n * columns + column()) * 4);
#pragma unroll
        for (int i = 0; i < C::lane_rows; ++i)
#pragma unroll
          for (int c = 0; c < 4; ++c)
            state.o[i][n][c] = fma_rn(p[i].v[e], v.v[c], state.o[i][n][c]);
      }
    }
  }
}
// [/lab: accumulate]

template <class C, class P>
LAB_DEVICE void store_state(State<C>& state, const PrefillParams& p, const typename C::Block& b) {
#pragma unroll
  for (int i = 0; i < C::lane_rows; ++i) {
    float l = state.l[i];
#pragma unroll
    for (int mask = columns; mask > 1; mask /= 2) l = l + shfl_xor(l, mask);
    const int row = tile_row<C>(i);
    if (row >= b.n_rows) continue;
    const i64 head = head_index(p, b, row), slot = head * p.splits + b.split;
#pragma unroll
    for (int n = 0; n < C::quads; ++n) {
      const f32x4 o = {{state.o[i][n][0], state.o[i][n][1], state.o[i][n][2], state.o[i][n][3]}};
      const int dim = (n * columns + column()) * 4;
      if (b.live_splits <= 1) store_out<typename P::Out, C::dim_vo>(p, head, dim, l, o);
      else store4(p.partial_o + slot * C::dim_vo + dim, o);
    }
    if (column() != 0) continue;
    if (b.live_splits <= 1) {
      store_lse2(p, head, state.m[i], l);
    } else {
      store_global(p.partial_m + slot, state.m[i]);
      store_global(p.partial_l + slot, l);
    }
  }
}

template <class C, class P>
LAB_KERNEL(C::threads, C::blocks_per_sm) prefill(LAB_GRID_CONSTANT PrefillParams p) {
  static_assert(sizeof(Smem<C>) == LAB_SMEM_BYTES, "the ledger's bytes are the compiler's");
  using T = typename C::T;
  auto& smem = shared_memory<Smem<C>>();
  const typename C::Block b = prefill_block<C::rows, C::paged>(p);
  const int* pages = p.page_table + static_cast<i64>(b.request) * p.page_table_stride;
  const KvRows<T> k_rows = {static_cast<const T*>(p.k) + b.first_kv * p.k_stride_token +
                                b.kv_head * p.k_stride_head,
                            pages, p.k_stride_page, p.k_stride_token, p.page_size};
  const KvRows<T> v_rows = {static_cast<const T*>(p.v) + b.first_kv * p.v_stride_token +
                                b.kv_head * p.v_stride_head,
                            pages, p.v_stride_page, p.v_stride_token, p.page_size};

  const int n_steps = (b.end_key - b.first_key + C::keys - 1) / C::keys;
  const int stride = C::walk == Walk::forward ? C::keys : -C::keys;
  int key = b.first_key + (C::walk == Walk::forward ? 0 : (n_steps - 1) * C::keys);
  Parcel<C, C::dim_qk> k;
  if (n_steps > 0) k.load(k_rows, key, b.end_key);
  load_query<C>(smem, p, b);
  if (n_steps > 0) k.store(smem.k);

  State<C> state;
#pragma unroll
  for (int i = 0; i < C::lane_rows; ++i) {
    state.m[i] = minus_infinity();
    state.l[i] = 0.f;
#pragma unroll
    for (int n = 0; n < C::quads; ++n)
#pragma unroll
      for (int c = 0; c < 4; ++c) state.o[i][n][c] = 0.f;
  }
  const int seen_by_all = row_limit(p, b, 0);

  for (int step = 0; step < n_steps; ++step, key += stride) {
    sync_block();                                // K is there, and no warp reads V any more
    Parcel<C, C::dim_vo> v;
    v.load(v_rows, key, b.end_key);
    Scores<C> s;
    scores<C>(s, smem);
    if (key + C::keys > least(seen_by_all, b.end_key)) mask<C>(s, p, b, key);
    update<C, P>(state, s, smem, p.scale_log2);
    v.store(smem.v);
    sync_block();                                // V and P are there, and no warp reads K any more
    if (step + 1 < n_steps) k.load(k_rows, key + stride, b.end_key);
    accumulate<C>(state, smem);
    if (step + 1 < n_steps) k.store(smem.k);
  }
  store_state<C, P>(state, p, b);
  if (b.live_splits > 1 && arrives_last(smem.q[0][0], p, b))
    merge_splits<P, C::warps, C::dim_vo>(p, b);
}

}  // namespace prefill_fma

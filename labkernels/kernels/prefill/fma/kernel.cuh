// This prefill leaves the tensor cores idle: CUDA cores compute in fp32 FMAs, and P is never
// rounded. Q, K and V are widened once, on their way to shared memory.
#pragma once
#include "packed_gqa/fma_tile.cuh"

namespace prefill_fma {
using namespace lab;
using namespace lab::fma_tile;

template <class T, int Dqk, int Dvo, int Rows, int Keys, int Warps, int Stages, int BlocksPerSm,
          KeyOrder Order, bool Paged, class Variant_ = Plain>
struct KernelTraits : Shape<T, Dqk, Dvo, Rows, Keys, Warps, BlocksPerSm, Variant_> {
  using Params = ParamsOf<PrefillParams, Variant_>;
  static constexpr int unroll_scores = Dqk <= 128 ? 4 : Dqk == Dvo ? 2 : 1;  // as registers allow
  static constexpr int unroll_output = unroll_scores;
  static constexpr KeyOrder walk = Order;
  static constexpr bool paged = Paged;
  static_assert(Stages == 1, "registers hold the K or V that comes next");
};

template <class C> struct Smem {
  alignas(16) float q[C::rows][C::dim_qk + padding];
  alignas(16) float k[C::keys][C::dim_qk + padding];
  alignas(16) float v[C::keys][C::dim_vo];
  alignas(16) float p[C::rows][C::keys];
  LAB_DEVICE const float* value(int key) const { return v[key]; }
};

template <class C>
LAB_DEVICE void load_query(Smem<C>& smem, const PrefillParams& p, const typename C::Work& b) {
  using T = typename C::T;
  constexpr int chunks = C::dim_qk / chunk_elements;
  const T* q = static_cast<const T*>(p.q) + b.kv_head * p.group * p.q_stride_head;
  for (int i = thread_x(); i < C::rows * chunks; i += C::threads) {
    const int row = i / chunks, c = i % chunks * chunk_elements;
    const int packed = b.first_row + row, token = packed / p.group;
    u32x4 pairs = {};  // rows past the request's end
    if (row < b.n_rows && in_head<C::dim_qk>(c))
      pairs = load_constant(
          reinterpret_cast<const u32x4*>(q + (b.first_token + token) * p.q_stride_token +
                                         (packed - token * p.group) * p.q_stride_head + c));
    widen<T>(smem.q[row] + c, pairs);
  }
}

// This says where the rows of K or V of one request and KV head lie.
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

// A thread holds this part of a step's K or V in registers, before it goes to shared memory.
template <class C, int D> struct Parcel {
  using T = typename C::T;
  static constexpr int chunks = D / chunk_elements, all = C::keys * chunks;
  static constexpr int passes = (all + C::threads - 1) / C::threads;
  u32x4 part[passes];  // [passes, 8 channels]

  // Keys that no row sees are zeros: a masked P of zero times a stale NaN would still be NaN.
  LAB_DEVICE void load(const KvRows<T>& from, int first_key, int begin_key, int end_key) {
#pragma unroll
    for (int pass = 0; pass < passes; ++pass) {
      const int i = pass * C::threads + thread_x(), key = first_key + i / chunks;
      const int c = i % chunks * chunk_elements;
      part[pass] = {};
      if (i < all && key < end_key && (!C::Variant::window || key >= begin_key) && in_head<D>(c))
        part[pass] =
            load_constant(reinterpret_cast<const u32x4*>(from.template row<C::paged>(key) + c));
    }
  }
  // Widens the part on its way to shared memory. tile: [keys, D].
  template <int Pitch> LAB_DEVICE void store(float (&tile)[C::keys][Pitch]) const {
#pragma unroll
    for (int pass = 0; pass < passes; ++pass) {
      const int i = pass * C::threads + thread_x();
      if (i < all) widen<T>(tile[i / chunks] + i % chunks * chunk_elements, part[pass]);
    }
  }
};

// Begins the softmax of the lane's rows with their sinks, and finds their slopes.
template <class C>
LAB_DEVICE void begin_rows(Softmax<C>& softmax, Slope (&slopes)[C::lane_rows],
                           const typename C::Params& p, const typename C::Work& b) {
#pragma unroll
  for (int i = 0; i < C::lane_rows; ++i) {
    const int row = tile_row<C>(i), head = query_head(p, b, row);
    using V = typename C::Variant;
    if constexpr (V::by_distance) slopes[i] = slope_of<V>(p, head, place_of(p, b, row));
    if constexpr (C::Variant::sinks)
      if (b.split == 0) begin_with_sink(softmax, i, p, head);
  }
}

template <class C, class P>
LAB_KERNEL(C::threads, C::blocks_per_sm) prefill(LAB_GRID_CONSTANT typename C::Params p) {
  static_assert(sizeof(Smem<C>) == LAB_SMEM_BYTES, "the ledger's bytes are the compiler's");
  using T = typename C::T;
  auto& smem = shared_memory<Smem<C>>();
  using V = typename C::Variant;
  const typename C::Work b = work_tile<C::rows, C::paged, V, C::keys>(p);
  const int* pages = p.page_table + static_cast<i64>(b.request) * p.page_table_stride;
  const KvRows<T> k_rows = {
      static_cast<const T*>(p.k) + b.first_kv * p.k_stride_token + b.kv_head * p.k_stride_head,
      pages, p.k_stride_page, p.k_stride_token, p.page_size};
  const KvRows<T> v_rows = {
      static_cast<const T*>(p.v) + b.first_kv * p.v_stride_token + b.kv_head * p.v_stride_head,
      pages, p.v_stride_page, p.v_stride_token, p.page_size};

  const int n_steps = (b.end_key - b.first_key + C::keys - 1) / C::keys;
  const int stride = C::walk == KeyOrder::ascending ? C::keys : -C::keys;
  int key = b.first_key + (C::walk == KeyOrder::ascending ? 0 : (n_steps - 1) * C::keys);
  Parcel<C, C::dim_qk> k;
  const int begin = row_begin<V>(p, b, 0);
  if (n_steps > 0) k.load(k_rows, key, begin, b.end_key);
  load_query<C>(smem, p, b);
  if (n_steps > 0) k.store(smem.k);

  Softmax<C> softmax;
  Output<C> o = {};
  Slope slopes[C::lane_rows] = {};
  begin_rows<C>(softmax, slopes, p, b);
  const int seen_by_all = row_limit<V>(p, b, 0), seen_from = row_begin<V>(p, b, b.n_rows - 1);

  for (int step = 0; step < n_steps; ++step, key += stride) {
    sync_block();  // K is there, and no warp reads V any more
    Parcel<C, C::dim_vo> v;
    v.load(v_rows, key, begin, b.end_key);
    Scores<C> s;
    scores<C>(s, smem);
    if constexpr (V::shapes_scores)
#pragma unroll
      for (int i = 0; i < C::lane_rows; ++i)
#pragma unroll
        for (int j = 0; j < C::lane_keys; ++j) {
          const int at = key + j * columns + column();
          s[i][j] = shaped<V>(s[i][j], p, slopes[i], static_cast<float>(at - slopes[i].place));
          s[i][j] = biased<V>(s[i][j], p, slopes[i], at);
        }
    if (V::mask || key + C::keys > least(seen_by_all, b.end_key) || (V::window && key < seen_from))
      mask<C>(s, p, b, key);
    const auto rescale = softmax.template update<P, T>(s, scale_of<V>(p));
    store_p<C>(smem, s);
    rescale_rows(o, rescale);
    v.store(smem.v);
    sync_block();  // V and P are there, and no warp reads K any more
    if (step + 1 < n_steps) k.load(k_rows, key + stride, begin, b.end_key);
    accumulate<C>(o, smem);
    if (step + 1 < n_steps) k.store(smem.k);
  }
  store<C, P>(o, softmax, p, b);
  if (b.live_splits > 1 && arrives_last(smem.q[0][0], p, b))
    merge_splits<P, C::warps, head_channels<C::dim_vo>>(p, b);
}

}  // namespace prefill_fma

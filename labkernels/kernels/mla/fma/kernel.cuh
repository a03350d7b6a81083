// This MLA decode leaves the tensor cores idle: CUDA cores compute in fp32 FMAs, and P is never
// rounded. Q and the latent rows are widened once, on their way to shared memory, where the first
// 512 channels of a key are its value.
#pragma once
#include "packed_gqa/fma_tile.cuh"
#include "mla/pipeline.cuh"

namespace mla_fma {
using namespace lab;
using namespace lab::fma_tile;

template <class T, int Dqk, int Dvo, int Rows, int Keys, int Warps, int Stages, int BlocksPerSm>
struct KernelTraits : Shape<T, Dqk, Dvo, Rows, Keys, Warps, BlocksPerSm> {
  static constexpr int unroll_scores = 2, unroll_output = 1;  // as registers allow
  static_assert(Stages == 1, "the rows of a step are widened at once");
};

template <class C> struct Smem {
  alignas(16) float q[C::rows][C::dim_qk + padding];
  alignas(16) float k[C::keys][C::dim_qk + padding];
  alignas(16) float p[C::rows][C::keys];
  LAB_DEVICE const float* value(int key) const { return k[key]; }
};

// Loads 16 bytes of a row that lies in two parts, from its channel c on.
template <class C>
LAB_DEVICE u32x4 load_part(const void* latent, i64 latent_row, const void* pe, i64 pe_row, int c) {
  using T = typename C::T;
  const T* from = c < C::dim_vo ? static_cast<const T*>(latent) + latent_row + c
                                : static_cast<const T*>(pe) + pe_row + (c - C::dim_vo);
  return load_constant(reinterpret_cast<const u32x4*>(from));
}

template <class C>
LAB_DEVICE void load_query(Smem<C>& smem, const MlaParams& p, const typename C::Work& b) {
  constexpr int chunks = C::dim_qk / chunk_elements;
  for (int i = thread_x(); i < C::rows * chunks; i += C::threads) {
    const int row = i / chunks, c = i % chunks * chunk_elements;
    const int packed = b.first_row + row, token = packed / p.group;
    const i64 at = b.first_token + token, head = packed - token * p.group;
    u32x4 pairs = {};  // rows past the request's end
    if (row < b.n_rows)
      pairs = load_part<C>(p.q_nope, at * p.q_nope_stride_token + head * p.q_nope_stride_head,
                           p.q_pe, at * p.q_pe_stride_token + head * p.q_pe_stride_head, c);
    widen<typename C::T>(smem.q[row] + c, pairs);
  }
}

// Loads a step's latent rows. Keys that no row sees are zeros: a masked P of zero times a stale NaN
// would still be NaN. O leaves no registers for the next rows, so other blocks hide the latency.
template <class C>
LAB_DEVICE void load_keys(Smem<C>& smem, const MlaParams& p, const typename C::Work& b,
                          int first_key) {
  constexpr int chunks = C::dim_qk / chunk_elements;
  const int* pages = p.page_table + static_cast<i64>(b.request) * p.page_table_stride;
#pragma unroll 3
  for (int i = thread_x(); i < C::keys * chunks; i += C::threads) {
    const int key = first_key + i / chunks, c = i % chunks * chunk_elements;
    u32x4 pairs = {};
    if (key < b.end_key) {
      const int slot = key / p.page_size, token = key - slot * p.page_size;
      const i64 page = load_constant(pages + slot);
      pairs = load_part<C>(p.ckv, page * p.ckv_stride_page + token * p.ckv_stride_token, p.kpe,
                           page * p.kpe_stride_page + token * p.kpe_stride_token, c);
    }
    widen<typename C::T>(smem.k[i / chunks] + c, pairs);
  }
}

template <class C, class P>
LAB_KERNEL(C::threads, C::blocks_per_sm) mla(LAB_GRID_CONSTANT MlaParams p) {
  static_assert(sizeof(Smem<C>) == LAB_SMEM_BYTES, "the ledger's bytes are the compiler's");
  auto& smem = shared_memory<Smem<C>>();
  const typename C::Work b = work_tile<C::rows, true>(p);
  if (is_idle(b)) return;
  load_query<C>(smem, p, b);

  Softmax<C> softmax;
  Output<C> o = {};
  const int seen_by_all = row_limit(p, b, 0);

  for (int key = b.first_key; key < b.end_key; key += C::keys) {
    sync_block();  // no warp reads the rows of the step before
    load_keys<C>(smem, p, b, key);
    sync_block();  // Q and this step's rows are there
    Scores<C> s;
    scores<C>(s, smem);
    if (key + C::keys > least(seen_by_all, b.end_key)) mask<C>(s, p, b, key);
    const auto rescale = softmax.template update<P, typename C::T>(s, p.scale_log2);
    store_p<C>(smem, s);
    rescale_rows(o, rescale);
    sync_warp();  // P of the warp's rows is there
    accumulate<C>(o, smem);
  }
  store<C, P>(o, softmax, p, b);
  if (b.live_splits > 1 && arrives_last(smem.q[0][0], p, b))
    merge_splits<P, C::warps, C::dim_vo>(p, b);
}

}  // namespace mla_fma

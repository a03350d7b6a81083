// The second launch of a split decode: one block a (query head, request) merges the splits' States
// in split order; a thread is a dimension of the head.
#pragma once
#include "lab/state.cuh"

namespace lab {

constexpr int max_splits = 1024;

struct MergeSmem { float weight[max_splits]; };

template <class P, int D> LAB_KERNEL(D, 1) merge_splits(LAB_GRID_CONSTANT DecodeParams p) {
  static_assert(sizeof(MergeSmem) == LAB_SMEM_BYTES, "the ledger's bytes are the compiler's");
  auto& smem = shared_memory<MergeSmem>();
  wait_previous_launch();
  const int dim = thread_x();
  const i64 head = static_cast<i64>(block_y()) * p.q_heads + block_x();
  const int kv_len = load_constant(p.kv_len + block_y());
  // Splits past the end of the request wrote nothing and are not read.
  const int live = (kv_len + p.keys_per_split - 1) / p.keys_per_split;
  const float* partial_m = p.partial_m + head * p.splits;
  const float* partial_l = p.partial_l + head * p.splits;
  const float* partial_o = p.partial_o + head * p.splits * D + dim;

  float m = minus_infinity();
  for (int s = 0; s < live; ++s) m = maximum(m, load_global(partial_m + s));
  for (int s = dim; s < live; s += D) smem.weight[s] = rescale_of<P>(load_global(partial_m + s), m);
  sync_block();                        // every split's weight is there, for every thread
  float l = 0.f, o = 0.f;
#pragma unroll 8
  for (int s = 0; s < live; ++s) {
    l = fma_rn(smem.weight[s], load_global(partial_l + s), l);
    o = fma_rn(smem.weight[s], load_global(partial_o + static_cast<i64>(s) * D), o);
  }
  store_out<typename P::Out>(p, head, dim, D, l == 0.f ? 0.f : div_rn(o, l));
  if (dim == 0) store_global(p.lse2 + head, lse2_of(m, l));
}

}  // namespace lab

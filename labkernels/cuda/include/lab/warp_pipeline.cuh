// A warp's private pipeline over its share of the keys: shared-memory stages that only this warp
// fills and reads, so that no warp waits for another until the States merge.
#pragma once
#include "lab/paged_kv.cuh"

namespace lab {

template <class T, int D, int Keys> struct KvStage {
  alignas(16) T k[Keys][D], v[Keys][D];
};

// The warps of a block take turns, `Keys` keys each. Step i lives in stage i % Stages; its K and its
// V are a copy group each. Past the end the copies fill zeros, so that the groups stay in step.
template <class T, int D, int Keys, int Warps, int Stages> struct WarpPipeline {
  using Stage = KvStage<T, D, Keys>;
  static constexpr int stride = Warps * Keys;

  Stage (&stages)[Stages];
  PagedWindow<T, D, Keys> window;
  int key, end_key, current;

  LAB_DEVICE WarpPipeline(Stage (&stages_)[Stages], const DecodeParams& p, const BlockWork& w)
      : stages(stages_), window(p, w), key(w.first_key + (thread_x() / 32) * Keys),
        end_key(w.end_key), current(0) {}

  LAB_DEVICE void copy(Stage& stage, int first_key) {
    window.copy(stage.k, window.k, first_key);
    cp_async_commit();
    window.copy(stage.v, window.v, first_key);
    cp_async_commit();
    window.look_up(first_key + stride);
  }
  LAB_DEVICE void start() {
    window.look_up(key);
#pragma unroll
    for (int i = 0; i < Stages - 1; ++i) copy(stages[i], key + i * stride);
  }
  // Of the calling thread's copies that were committed before start().
  LAB_DEVICE void wait_earlier_copies() { cp_async_wait<2 * (Stages - 1)>(); }

  LAB_DEVICE bool more() const { return key < end_key; }
  LAB_DEVICE bool ragged() const { return key + Keys > end_key; }
  LAB_DEVICE Stage& stage() { return stages[current]; }

  LAB_DEVICE void prefetch() {
    copy(stages[(current + Stages - 1) % Stages], key + (Stages - 1) * stride);
  }
  LAB_DEVICE void wait_k() {
    cp_async_wait<2 * Stages - 1>();
    sync_warp();                       // K of this step is there, for every lane
  }
  LAB_DEVICE void wait_v() {
    cp_async_wait<2 * Stages - 2>();
    sync_warp();                       // V too
  }
  LAB_DEVICE void advance() {
    sync_warp();                       // every lane is done with the stage: it may be overwritten
    current = current + 1 == Stages ? 0 : current + 1;
    key += stride;
  }
  LAB_DEVICE void finish() {
    cp_async_wait<0>();
    sync_block();                      // no warp uses its stages: something else may take their place
  }
};

// The block's query rows, in one copy group a thread. Rows past the group are zero.
template <class T, int D, int Rows, int Threads>
LAB_DEVICE void load_query(T (&tile)[Rows][D], const DecodeParams& p, const BlockWork& w) {
  constexpr int chunks = D / chunk_elements;
  const T* q = static_cast<const T*>(p.q) + w.batch * p.q_stride_batch;
  for (int i = thread_x(); i < Rows * chunks; i += Threads) {
    const int row = i / chunks, c = i % chunks;
    const bool valid = row < w.n_q_heads;
    const i64 offset = (w.first_q_head + row) * p.q_stride_head + c * chunk_elements;
    cp_async_16(chunk<D>(tile, row, c), q + (valid ? offset : 0), valid);
  }
  cp_async_commit();
}

}  // namespace lab

// A warp has a private pipeline over its share of the keys: only this warp fills and reads the
// stages in shared memory, so that no warp waits for another until the States merge.
#pragma once
#include "decode/problem.cuh"

namespace lab {

// V is needed later than K of the same keys: it is requested a step later and needs one stage less.
template <class T, int D, int Keys, int Stages> struct KvStages {
  alignas(16) T k[Stages][Keys][D];
  alignas(16) T v[Stages - 1][Keys][D];
};

// The warps of a block take turns, `Keys` keys each. K of step i lives in stage i % Stages, V in
// stage i % (Stages - 1). The copy groups are K0 V0 K1 V1 K2 ...; past the end they hold zeros, so
// that the number of groups in flight stays constant.
template <class T, int D, int Keys, int Warps, int Stages, bool Blocks = false>
struct WarpPipeline {
  using Buffers = KvStages<T, D, Keys, Stages>;
  static constexpr int stride = Warps * Keys;
  static_assert(Stages >= 2, "K of the next step is copied while this one is computed");

  Buffers& buffers;
  using Scales = typename ScalesOfKeys<Blocks, Stages>::type;
  PagedWindow<T, D, Keys, Scales> window;  // pages are looked up as far as the next K to request
  int key, end_key, k_stage, v_stage;

  template <class Params>
  LAB_DEVICE WarpPipeline(Buffers& buffers_, const Params& p, const DecodeWork& w)
      : buffers(buffers_), window(p, w), key(w.first_key + (thread_x() / 32) * Keys),
        end_key(w.end_key), k_stage(0), v_stage(0) {}

  LAB_DEVICE void copy_k(int stage, int first_key) {
    window.copy(buffers.k[stage], window.k, first_key, window.offset);
    cp_async_commit();
    window.scales.load(first_key + (thread_x() & 31) % Keys < end_key);
    window.look_up(first_key + stride);
  }
  LAB_DEVICE void copy_v(int stage, int first_key) {
    window.copy(buffers.v[stage], window.v, first_key, window.previous);
    cp_async_commit();
  }
  LAB_DEVICE void start() {
    window.look_up(key);
    copy_k(0, key);
#pragma unroll
    for (int i = 1; i < Stages - 1; ++i) {
      copy_v(i - 1, key + (i - 1) * stride);
      copy_k(i, key + i * stride);
    }
  }
  // Waits for the copy groups that the calling thread committed before start().
  LAB_DEVICE void wait_earlier_copies() { cp_async_wait<2 * Stages - 3>(); }

  LAB_DEVICE bool more() const { return key < end_key; }
  LAB_DEVICE bool ragged() const { return key + Keys > end_key; }
  LAB_DEVICE auto& k() { return buffers.k[k_stage]; }  // [Keys, D]
  LAB_DEVICE auto& v() { return buffers.v[v_stage]; }  // [Keys, D]
  // The scales of K and of V of the lane's key of this step.
  LAB_DEVICE float k_scale() const { return window.scales.k[0]; }
  LAB_DEVICE float v_scale() const { return window.scales.v[0]; }

  LAB_DEVICE void prefetch() {
    copy_v((v_stage + Stages - 2) % (Stages - 1), key + (Stages - 2) * stride);
    copy_k((k_stage + Stages - 1) % Stages, key + (Stages - 1) * stride);
  }
  LAB_DEVICE void wait_k() {
    cp_async_wait<2 * Stages - 2>();
    sync_warp();  // K of this step is there, for every lane
  }
  LAB_DEVICE void wait_v() {
    cp_async_wait<2 * Stages - 3>();
    sync_warp();  // V of this step is there, for every lane
  }
  LAB_DEVICE void advance() {
    sync_warp();  // no lane reads K and V any more: they may be overwritten
    k_stage = k_stage + 1 == Stages ? 0 : k_stage + 1;
    v_stage = v_stage + 1 == Stages - 1 ? 0 : v_stage + 1;
    key += stride;
  }
  LAB_DEVICE void finish() {
    cp_async_wait<0>();
    sync_block();  // no warp uses its stages: other data may replace them
  }
};

// Copies the block's query rows, in one copy group per thread. Rows past the group are zero.
template <class T, int D, int Rows, int Threads>
LAB_DEVICE void load_query(T (&tile)[Rows][D], const DecodeParams& p, const DecodeWork& w) {
  constexpr int chunks = D / chunk_elements;
  const T* q = static_cast<const T*>(p.q) + w.batch * p.q_stride_batch;
  for (int i = thread_x(); i < Rows * chunks; i += Threads) {
    const int row = i / chunks, c = i % chunks;
    const bool valid = row < w.n_q_heads && in_head<D>(c * chunk_elements);
    const i64 offset = (w.first_q_head + row) * p.q_stride_head + c * chunk_elements;
    cp_async_16(chunk<D>(tile, row, c), q + (valid ? offset : 0), valid);
  }
  cp_async_commit();
}

}  // namespace lab

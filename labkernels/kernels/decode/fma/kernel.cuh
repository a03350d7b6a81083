// This paged decode leaves the tensor cores idle: CUDA cores compute in fp32 FMAs, and P is never
// rounded. D / 8 lanes share a key and have 8 channels each. One reduction finishes the dot
// products of several keys and query heads, after which a lane holds one finished score. P goes
// through shared memory, where all lanes read it as a broadcast.
#pragma once
#include "lab/attention/split_kv.cuh"
#include "decode/pipeline.cuh"

namespace decode_fma {
using namespace lab;

template <class T_, int HeadDim, int Rows, int Warps, int Keys, int Stages, int BlocksPerSm,
          class Variant_ = Plain, class Kv_ = T_, bool Blocks = false>
struct KernelTraits {
  using T = T_;    // type of Q
  using Kv = Kv_;  // type of K and V in the cache
  using Variant = Variant_;
  using Params = typename ParamsOfCache<T, Kv, Variant, Blocks>::type;
  static constexpr bool blocks = Blocks;  // of keys have scales
  static constexpr int head_dim = HeadDim, rows = Rows, warps = Warps, keys = Keys, stages = Stages;
  static constexpr int threads = 32 * Warps, blocks_per_sm = BlocksPerSm;
  static constexpr int lanes = HeadDim / chunk_elements;  // lanes that share a key
  static constexpr int keys_at_once = 32 / lanes;
  static constexpr int rounds = Keys / keys_at_once;  // reductions until all keys are done
  // A reduction takes `values` dot products at a time, indexed [round][row].
  static constexpr int values = rounds * Rows < lanes ? rounds * Rows : lanes;
  static constexpr int rounds_per_reduction = values / Rows;
  static constexpr int reductions = rounds / rounds_per_reduction;
  static constexpr int copies = lanes / values;  // lanes that end with the same score
  // Lanes that differ only in these bits hold different scores of the same row.
  static constexpr int same_row_bits = 31 & ~(Rows * copies - 1);
  using Pipeline = WarpPipeline<Kv, HeadDim, Keys, Warps, Stages, Blocks>;
  static_assert(Rows <= lanes && (Rows & (Rows - 1)) == 0, "a reduction holds whole rounds");
  static_assert(Keys % keys_at_once == 0, "every round is full");
};

template <class C> struct Smem {
  struct Loop {
    typename C::Pipeline::Buffers stages[C::warps];
    alignas(16) float p[C::warps][C::keys][C::rows];
  };
  union {
    Loop loop;
    WarpStates<C::warps, C::rows, C::head_dim> states;
  };
};

template <class C> using KvTile = typename C::Kv[C::keys][C::head_dim];  // K or V of a step

// A lane has {m, l} of its own row, and O of all rows for its channels, over its keys.
template <class C> using Softmax = OnlineSoftmaxOf<ArrayRows<1, C::same_row_bits>>;
template <class C> using Output = float[C::rows][chunk_elements];  // [rows, 8 channels]
template <class C> using Scores = float[C::reductions];  // [reductions], scores of this lane's row
template <class C> using Weights = float[C::keys][C::rows];  // P, in shared memory: [keys, rows]
template <class C> using Query = float[C::rows][chunk_elements];  // [rows, 8 channels]

// These say which finished score a lane holds after a reduction.
template <class C> LAB_DEVICE int value_index() { return (thread_x() % C::lanes) / C::copies; }
template <class C> LAB_DEVICE int own_row() { return value_index<C>() % C::rows; }
template <class C> LAB_DEVICE int own_key(int reduction) {
  const int round = reduction * C::rounds_per_reduction + value_index<C>() / C::rows;
  return round * C::keys_at_once + (thread_x() & 31) / C::lanes;
}

// Widens 16 bytes to fp32. x: [8 channels].
template <class T> LAB_DEVICE void unpack(float (&x)[chunk_elements], const u32x4& pairs) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const f32x2 pair = unpack2<T>(pairs.v[i]);
    x[2 * i] = pair.x;
    x[2 * i + 1] = pair.y;
  }
}

// Loads the `c`-th 8 channels of a key in fp32.
template <class C>
LAB_DEVICE void load_channels(float (&x)[chunk_elements], KvTile<C>& tile, int key, int c) {
  if constexpr (sizeof(typename C::Kv) == sizeof(typename C::T)) {
    unpack<typename C::T>(x, load_chunk(tile, key, c));
  } else {
    const auto* place = chunk<C::head_dim>(tile, key, c / 2) + c % 2 * chunk_elements;
    const u32x2 codes = *reinterpret_cast<const u32x2*>(place);
    u32x4 pairs;
    widen<f16, typename C::Kv>(pairs.v[0], pairs.v[1], codes.v[0]);
    widen<f16, typename C::Kv>(pairs.v[2], pairs.v[3], codes.v[1]);
    unpack<f16>(x, pairs);
  }
}

template <class C>
LAB_DEVICE void load_query(Query<C>& q, const DecodeParams& p, const DecodeWork& w) {
  using T = typename C::T;
  const int channel = (thread_x() % C::lanes) * chunk_elements;
  const T* head = static_cast<const T*>(p.q) + w.batch * p.q_stride_batch +
                  w.first_q_head * p.q_stride_head + channel;
#pragma unroll
  for (int row = 0; row < C::rows; ++row) {
    u32x4 pairs = {{0, 0, 0, 0}};  // rows past the group, whose scores are not used
    if (row < w.n_q_heads && in_head<C::head_dim>(channel))
      pairs = load_constant(reinterpret_cast<const u32x4*>(head + row * p.q_stride_head));
    unpack<T>(q[row], pairs);
  }
}

// [lab: reduce]
// Sums each of N values over L lanes. v: [N values of this lane]. In each step a lane sends half of
// its values to another lane and keeps the other half, so that N values cost about N shuffles and
// not N log2 L.
template <int N, int L> LAB_DEVICE float reduce(float (&v)[N]) {
  int n = N;
#pragma unroll
  for (int mask = L / 2; mask > 0; mask /= 2) {
    if (n == 1) {
      v[0] = v[0] + shfl_xor(v[0], mask);
    } else {
      n /= 2;
      const bool upper = thread_x() & mask;
#pragma unroll
      for (int i = 0; i < N / 2; ++i)
        if (i < n) {
          const float keep = upper ? v[i + n] : v[i], send = upper ? v[i] : v[i + n];
          v[i] = keep + shfl_xor(send, mask);
        }
    }
  }
  return v[0];
}
// [/lab: reduce]

// [lab: scores]
// Computes S = Q K^T: s[r] is this lane's finished score of reduction r.
template <class C>
LAB_DEVICE void scores(Scores<C>& s, const Query<C>& q, KvTile<C>& k_tile) {
  const int lane = thread_x() & 31;
#pragma unroll
  for (int r = 0; r < C::reductions; ++r) {
    float dot[C::values];  // [rounds_per_reduction, rows]
#pragma unroll
    for (int i = 0; i < C::rounds_per_reduction; ++i) {
      const int key = (r * C::rounds_per_reduction + i) * C::keys_at_once + lane / C::lanes;
      float k[chunk_elements];  // [8 channels] of the lane's key
      load_channels<C>(k, k_tile, key, lane % C::lanes);
#pragma unroll
      for (int row = 0; row < C::rows; ++row) {
        float& d = dot[i * C::rows + row];
        d = q[row][0] * k[0];
#pragma unroll
        for (int c = 1; c < chunk_elements; ++c) d = fma_rn(q[row][c], k[c], d);
      }
    }
    s[r] = reduce<C::values, C::lanes>(dot);
  }
}
// [/lab: scores]

// Multiplies scores, or P, by their keys' scales, of which lane i has that of key i.
template <class C> LAB_DEVICE void scale_keys(Scores<C>& s, float scale) {
#pragma unroll
  for (int r = 0; r < C::reductions; ++r) s[r] = s[r] * shfl(scale, own_key<C>(r));
}

// A lane holds O of all rows, but {m, l} of its own row alone. Therefore one lane per row provides
// the row's factor.
template <class C, class Own> LAB_DEVICE void rescale_rows(Output<C>& o, const Own& own) {
  if (!warp_any(own.moved())) return;  // a factor of 1 changes no bit
  RescaleOf<ArrayRows<C::rows, 0>> rescale;
#pragma unroll
  for (int row = 0; row < C::rows; ++row) rescale.by[row] = shfl(own.by[0], row * C::copies);
  multiply_rows(o, rescale);
}

// Stores P in shared memory; if several lanes hold the same value, one of them writes it.
template <class C> LAB_DEVICE void store_p(Weights<C>& p, const Scores<C>& s) {
  const bool is_first_copy = value_index<C>() * C::copies == thread_x() % C::lanes;
#pragma unroll
  for (int r = 0; r < C::reductions; ++r)
    if (is_first_copy) p[own_key<C>(r)][own_row<C>()] = s[r];
  sync_warp();  // P is there, for every lane
}

// [lab: accumulate]
// Computes O += P V for the lane's channels. The lanes that have the same channels take different
// keys.
template <class C>
LAB_DEVICE void accumulate(Output<C>& o, const Weights<C>& p, KvTile<C>& v_tile) {
  const int lane = thread_x() & 31;
#pragma unroll
  for (int i = 0; i < C::rounds; ++i) {
    const int key = i * C::keys_at_once + lane / C::lanes;
    float v[chunk_elements];  // [8 channels] of a key
    load_channels<C>(v, v_tile, key, lane % C::lanes);
#pragma unroll
    for (int row = 0; row < C::rows; ++row)
#pragma unroll
      for (int c = 0; c < chunk_elements; ++c) o[row][c] = fma_rn(p[key][row], v[c], o[row][c]);
  }
}
// [/lab: accumulate]

template <class C>
LAB_DEVICE void store_state(Smem<C>& smem, Softmax<C>& softmax, const Output<C>& output) {
  const int lane = thread_x() & 31, warp = thread_x() / 32;
  softmax.reduce();
  if (lane == own_row<C>() * C::copies) {
    smem.states.m[warp][own_row<C>()] = softmax.m[0];
    smem.states.l[warp][own_row<C>()] = softmax.l[0];
  }
#pragma unroll
  for (int row = 0; row < C::rows; ++row)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      f32x4 o;
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        o.v[c] = output[row][half * 4 + c];
#pragma unroll
        for (int mask = 16; mask >= C::lanes; mask /= 2) o.v[c] = o.v[c] + shfl_xor(o.v[c], mask);
      }
      if (lane < C::lanes)
        *reinterpret_cast<f32x4*>(&smem.states.o[warp][row][lane * chunk_elements + half * 4]) = o;
    }
}

template <class C, class P>
LAB_KERNEL(C::threads, C::blocks_per_sm) decode(LAB_GRID_CONSTANT typename C::Params p) {
  static_assert(sizeof(Smem<C>) == LAB_SMEM_BYTES, "the ledger's bytes are the compiler's");
  auto& smem = shared_memory<Smem<C>>();
  using V = typename C::Variant;
  const DecodeWork work = decode_work<C::rows, V>(p);
  if (work.split > 0 && work.first_key >= work.end_key) return;  // a split without keys

  const int warp = thread_x() / 32;
  typename C::Pipeline pipeline(smem.loop.stages[warp], p, work);
  pipeline.start();
  Query<C> q;
  load_query<C>(q, p, work);

  const auto& numbers = score_numbers<V>(p, work);
  Softmax<C> softmax;
  const int own_head = work.first_q_head + least(own_row<C>(), work.n_q_heads - 1);
  Slope slope = {};
  if constexpr (V::by_distance)
    slope = slope_of<V>(p, own_head, load_constant(p.kv_len + work.batch) - 1);
  if constexpr (V::sinks)
    if (work.split == 0 && warp == 0) begin_with_sink(softmax, 0, p, own_head);
  Output<C> o = {};
  for (; pipeline.more(); pipeline.advance()) {
    pipeline.prefetch();
    Scores<C> s;
    pipeline.wait_k();
    scores<C>(s, q, pipeline.k());
    if constexpr (C::blocks) scale_keys<C>(s, pipeline.k_scale());
    if constexpr (V::shapes_scores)
#pragma unroll
      for (int r = 0; r < C::reductions; ++r) {
        const int at = pipeline.key + own_key<C>(r);
        s[r] = shaped<V>(s[r], numbers, slope, static_cast<float>(at - slope.place));
        s[r] = biased<V>(s[r], numbers, slope, at);
      }
    if (pipeline.ragged())
#pragma unroll
      for (int r = 0; r < C::reductions; ++r)
        if (pipeline.key + own_key<C>(r) >= work.end_key) s[r] = minus_infinity();
    const auto rescale = softmax.template update<P, typename C::T>(s, scale_of<V>(numbers));
    if constexpr (C::blocks) scale_keys<C>(s, pipeline.v_scale());
    store_p<C>(smem.loop.p[warp], s);
    rescale_rows<C>(o, rescale);
    pipeline.wait_v();
    accumulate<C>(o, smem.loop.p[warp], pipeline.v());
  }
  pipeline.finish();
  store_state<C>(smem, softmax, o);
  finish<P, C::threads>(smem.states, p, work);
}

}  // namespace decode_fma

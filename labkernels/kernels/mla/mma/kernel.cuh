// This MLA decode uses the tensor cores by mma.sync. 16 rows of O, which has 512 channels, do not
// fit in one warp's registers. Each warp therefore holds all rows of some channels of O, and the
// warps share S and P: a warp computes some rows and keys of S, and P goes through shared memory to
// all warps. V is the first 512 channels of K and is never loaded by itself. Of a fragment, lane 4
// g + t holds rows g and g + 8 of each 16, and columns 2t and 2t + 1 of each 8.
#pragma once
#include "mla/pipeline.cuh"

namespace mla_mma {
using namespace lab;

constexpr int padding = LAB_P_PADDING;  // of P's rows: ldmatrix reads eight bank groups

template <class T_, int Dqk, int Dvo, int Rows, int Keys, int Warps, int Stages, int BlocksPerSm>
struct KernelTraits {
  using T = T_;  // type of Q, K, V and the rounded P
  static constexpr int dim_qk = Dqk, dim_vo = Dvo, rows = Rows, keys = Keys, stages = Stages;
  static constexpr int warps = Warps, threads = 32 * Warps, blocks_per_sm = BlocksPerSm;
  static constexpr int row_tiles = Rows / 16, octets = Dvo / Warps / 8;  // tiles of a warp's O
  static constexpr int shares = Warps / row_tiles;  // warps that share the scores of 16 rows
  static constexpr int warp_keys = Keys / shares;   // keys whose weights a warp computes
  // Two warps of a pair compute the scores of both warps' rows (or of both warps' keys, if one warp
  // has fewer keys than an ldmatrix takes), each over half of the channels, and add them: a product
  // twice as large reads fewer fragments per FLOP.
  static constexpr bool by_rows = warp_keys >= 16 && row_tiles > 1;
  static constexpr bool by_keys = warp_keys < 16, pairs = by_rows || by_keys;
  static constexpr int owners = pairs ? 2 : 1;
  static constexpr int score_tiles = by_rows ? 2 : 1;  // of 16 rows
  static constexpr int score_keys = by_keys ? 2 * warp_keys : warp_keys;
  using Work = WorkTile<Rows>;
  using Pipeline = LatentPipeline<T, Dvo, Dqk - Dvo, Keys, threads, Stages>;
  static_assert(shares * row_tiles == Warps && score_keys % 16 == 0 && octets % 8 == 0);
};

template <class C> struct Smem {
  alignas(128) typename C::T q[C::rows][C::dim_qk];
  alignas(128) typename C::T k[C::stages][C::keys][C::dim_qk];
  alignas(16) typename C::T p[C::rows][C::keys + padding];
  float part[C::shares][C::rows];  // of the maxima in the loop, and of l after it
  float rescale[C::rows], m[C::rows];
};

template <class C> using Weights = float[C::warp_keys / 8][4];  // [16 rows, warp_keys]
template <class C> using Scores = Weights<C>[C::owners];        // [owners, 16 rows, warp_keys]
template <class C> using Output = float[C::row_tiles][C::octets][4];  // [rows, dim_vo / warps]

// A warp's part of a step has the rows and keys of S that the warp computes, over all channels or
// half of them, and the rows and keys with which the warp continues.
template <class C> struct Part {
  int score_row, score_key, half, row, share;
  LAB_DEVICE Part() {
    constexpr int group = C::shares * C::score_tiles;
    const int warp = thread_x() / 32, member = warp % group;
    half = member % C::owners;
    share = member / C::score_tiles;
    score_row = warp / group * 16 * C::score_tiles;
    score_key = share * C::warp_keys / C::score_keys * C::score_keys;
    row = score_row + (C::by_rows ? half * 16 : 0);
  }
  LAB_DEVICE int key() const { return share * C::warp_keys; }
};

// These are the addresses at which a lane's rows of the fragments begin, in Q and P and in the
// first stage of K and V.
struct Addresses { u32 q, k, p, v; };
template <class C> LAB_DEVICE Addresses addresses(const Smem<C>& smem, const Part<C>& part) {
  const int lane = thread_x() & 31, warp = thread_x() / 32;
  const int k_row = part.score_key + (lane & 7) + (lane >> 4) * 8;  // (keys 0-7, 8-15) x (channels)
  const int q_row = part.score_row + (lane & 15);
  // A half has every other 16 channels, so that the step between them is a constant.
  const int half = part.half * 2;
  return {other_chunk(chunk_address<C::dim_qk>(smem.q, q_row, lane >> 4), half),
          other_chunk(chunk_address<C::dim_qk>(smem.k[0], k_row, (lane >> 3) & 1), half),
          shared_address(&smem.p[lane & 15][(lane >> 4) * 8]),
          chunk_address<C::dim_qk>(smem.k[0], lane & 15, warp * C::octets + (lane >> 4))};
}

// [lab: scores]
// Computes S = Q K^T for the pair's rows and keys, over the warp's channels.
template <class C> LAB_DEVICE void scores(Scores<C>& s, u32 q_address, u32 k_address) {
  constexpr int row_bytes = C::dim_qk * static_cast<int>(sizeof(u16)), octets = C::warp_keys / 8;
#pragma unroll
  for (int owner = 0; owner < C::owners; ++owner)
#pragma unroll
    for (int j = 0; j < octets; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) s[owner][j][i] = 0.f;
#pragma unroll
  for (int d = 0; d < C::dim_qk / 8; d += 2 * C::owners) {
    u32 q[C::score_tiles][4];  // [score_tiles of 16 rows, 16 channels]
#pragma unroll
    for (int m = 0; m < C::score_tiles; ++m)
      ldmatrix_x4(q[m], other_chunk(q_address, d) + m * 16 * row_bytes);
#pragma unroll
    for (int j = 0; j < C::score_keys / 8; j += 2) {
      u32 k[4];  // [16 keys, 16 channels]
      ldmatrix_x4(k, other_chunk(k_address, d) + j * 8 * row_bytes);
#pragma unroll
      for (int m = 0; m < C::score_tiles; ++m)
#pragma unroll
        for (int h = 0; h < 2; ++h)  // keys 0-7, 8-15
          mma_m16n8k16<typename C::T>(s[m + (j + h) / octets][(j + h) % octets], q[m], k[2 * h],
                                      k[2 * h + 1]);
    }
  }
}

// Computes the scores with which the warp continues: its own part of the sums plus the other warp's
// part. Half of the exchange goes through P's place, and half through the place of kpe, which every
// warp has read by then.
template <class C>
LAB_DEVICE void add_halves(Weights<C>& own, const Scores<C>& s, Smem<C>& smem, int stage,
                           const Part<C>& part) {
  constexpr int n = C::warp_keys / 2;  // scores of a lane
#pragma unroll
  for (int i = 0; i < n; ++i)
    own[i / 4][i % 4] = part.half == 0 ? s[0][i / 4][i % 4] : s[C::owners - 1][i / 4][i % 4];
  if constexpr (C::pairs) {
    const int lane = thread_x() & 31, warp = thread_x() / 32;
#pragma unroll
    for (int round = 0; round < 2; ++round) {
      const auto place = [&](int of_warp, int i) {
        const int row = of_warp * (n / 2) + i;  // of 32 floats
        float* floats = round == 0 ? reinterpret_cast<float*>(smem.p) + row * 32
                                   : reinterpret_cast<float*>(&smem.k[stage][row][C::dim_vo]);
        return floats + lane;
      };
#pragma unroll
      for (int i = 0; i < n / 2; ++i) {
        const int at = round * (n / 2) + i;
        *place(warp, i) = part.half == 0 ? s[1][at / 4][at % 4] : s[0][at / 4][at % 4];
      }
      sync_block();  // every warp has computed and stored its halves
#pragma unroll
      for (int i = 0; i < n / 2; ++i) {
        const int at = round * (n / 2) + i;
        own[at / 4][at % 4] = own[at / 4][at % 4] + *place(warp ^ 1, i);
      }
    }
  }
}
// [/lab: scores]

// Sets the scores of the keys that a row does not see to -inf. Only steps at the boundary need
// this.
template <class C>
LAB_DEVICE void mask(Weights<C>& s, const MlaParams& p, const typename C::Work& b,
                     const Part<C>& part, int key) {
  const int lane = thread_x() & 31, column = key + part.key() + (lane & 3) * 2;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int seen = least(row_limit(p, b, part.row + lane / 4 + r * 8), b.end_key) - column;
#pragma unroll
    for (int j = 0; j < C::warp_keys / 8; ++j)
#pragma unroll
      for (int i = 0; i < 2; ++i)
        if (j * 8 + i >= seen) s[j][2 * r + i] = minus_infinity();
  }
}

// [lab: update]
// Raises the maxima to the maxima of all warps' scores, and stores P and the factors of O for all
// warps.
template <class C, class P>
LAB_DEVICE void update(OnlineSoftmax& rows, Weights<C>& s, Smem<C>& smem, const Part<C>& part,
                       float scale_log2) {
  using T = typename C::T;
  const int lane = thread_x() & 31, first_row = part.row + lane / 4;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float top = rows.top(s, r);
    if ((lane & 3) == 0) smem.part[part.share][first_row + 8 * r] = top;
  }
  sync_block();  // the maxima of all warps are there
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = first_row + 8 * r;
    float top = smem.part[0][row];
#pragma unroll
    for (int i = 1; i < C::shares; ++i) top = maximum(top, smem.part[i][row]);
    const float rescale = rows.raise<P>(r, top * scale_log2);
    if (part.share == 0 && (lane & 3) == 0) smem.rescale[row] = rescale;
#pragma unroll
    for (int j = 0; j < C::warp_keys / 8; ++j) {
      const float low = rows.add<P, T>(r, s[j][2 * r], scale_log2);
      const float high = rows.add<P, T>(r, s[j][2 * r + 1], scale_log2);
      const int column = part.key() + j * 8 + (lane & 3) * 2;
      *reinterpret_cast<u32*>(&smem.p[row][column]) = pack2<T>(low, high);
    }
  }
  sync_block();  // P and the factors are there
}
// [/lab: update]

// [lab: accumulate]
// Computes O += P V for all rows and the warp's channels.
template <class C>
LAB_DEVICE void accumulate(Output<C>& o, const Smem<C>& smem, u32 p_address, u32 v_address) {
  constexpr int p_bytes = (C::keys + padding) * static_cast<int>(sizeof(u16));
  constexpr int v_bytes = C::dim_qk * static_cast<int>(sizeof(u16));
  const int lane = thread_x() & 31;
  Rescale rescale[C::row_tiles];
  bool moved = false;
#pragma unroll
  for (int m = 0; m < C::row_tiles; ++m) {
#pragma unroll
    for (int r = 0; r < 2; ++r) rescale[m].by[r] = smem.rescale[m * 16 + lane / 4 + 8 * r];
    moved = moved || rescale[m].moved();
  }
  if (warp_any(moved))  // a factor of 1 changes no bit, and is skipped
#pragma unroll
    for (int m = 0; m < C::row_tiles; ++m) multiply_rows(o[m], rescale[m]);
#pragma unroll
  for (int b = 0; b < C::keys / 16; ++b) {
    u32 p[C::row_tiles][4];  // [rows, 16 keys]
#pragma unroll
    for (int m = 0; m < C::row_tiles; ++m) ldmatrix_x4(p[m], p_address + m * 16 * p_bytes + b * 32);
#pragma unroll
    for (int n = 0; n < C::octets / 2; ++n) {
      u32 v[4];  // [16 keys, 16 channels]
      ldmatrix_x4_trans(v, other_chunk(v_address, n * 2) + b * 16 * v_bytes);
#pragma unroll
      for (int m = 0; m < C::row_tiles; ++m) {
        mma_m16n8k16<typename C::T>(o[m][2 * n], p[m], v[0], v[1]);
        mma_m16n8k16<typename C::T>(o[m][2 * n + 1], p[m], v[2], v[3]);
      }
    }
  }
}
// [/lab: accumulate]

// Stores m and the warps' parts of l in shared memory, for all warps.
template <class C>
LAB_DEVICE void share_state(Smem<C>& smem, OnlineSoftmax& rows, const Part<C>& part) {
  const int lane = thread_x() & 31;
  rows.reduce();
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = part.row + lane / 4 + 8 * r;
    if ((lane & 3) == 0) {
      smem.part[part.share][row] = rows.l[r];
      if (part.share == 0) smem.m[row] = rows.m[r];
    }
  }
  sync_block();  // m and l of all rows are there
}
template <class C> LAB_DEVICE float whole_l(const Smem<C>& smem, int row) {
  float l = smem.part[0][row];
#pragma unroll
  for (int i = 1; i < C::shares; ++i) l = l + smem.part[i][row];
  return l;
}

// Stores the warp's channels of a row from its registers. o: [16 rows, the warp's channels].
template <class C, class Out>
LAB_DEVICE void store_row(Out* out, const float (&o)[C::octets][4], int r, float factor) {
#pragma unroll
  for (int n = 0; n < C::octets; ++n)
    store2(out + n * 8 + (thread_x() & 3) * 2, o[n][2 * r] * factor, o[n][2 * r + 1] * factor);
}

// Divides O by l and writes it, or writes the split's partial State.
template <class C, class P>
LAB_DEVICE void store(const Output<C>& o, const Smem<C>& smem, const MlaParams& p,
                      const typename C::Work& b) {
  using Out = typename P::Out;
  const int lane = thread_x() & 31, first_channel = thread_x() / 32 * C::octets * 8;
  const bool whole = b.live_splits <= 1;
#pragma unroll
  for (int m = 0; m < C::row_tiles; ++m)
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = m * 16 + lane / 4 + 8 * r;
      if (row >= b.n_rows) continue;
      const i64 head = head_index(p, b, row), slot = head * p.splits + b.split;
      const float l = whole_l(smem, row);
      const float factor = inverse_of(l);
      if (whole) {
        auto* out = static_cast<Out*>(p.out) + head * C::dim_vo + first_channel;
        store_row<C>(out, o[m], r, factor);
      } else {
        store_row<C>(p.partial_o + slot * C::dim_vo + first_channel, o[m], r, 1.f);
      }
      if (thread_x() >= 32 || (lane & 3) != 0) continue;
      if (whole) {
        store_lse2(p, head, smem.m[row], l);
      } else {
        store_partial(p, slot, smem.m[row], l);
      }
    }
}

template <class C, class P>
LAB_KERNEL(C::threads, C::blocks_per_sm) mla(LAB_GRID_CONSTANT MlaParams p) {
  static_assert(sizeof(Smem<C>) == LAB_SMEM_BYTES, "the ledger's bytes are the compiler's");
  auto& smem = shared_memory<Smem<C>>();
  const typename C::Work block = work_tile<C::rows, true>(p);
  if (is_idle(block)) return;

  constexpr int dim_pe = C::dim_qk - C::dim_vo;
  load_latent_query<typename C::T, C::dim_vo, dim_pe, C::rows, C::threads>(smem.q, p, block);
  typename C::Pipeline pipeline(smem.k, p, block);
  pipeline.start();
  const int seen_by_all = least(row_limit(p, block, 0), block.end_key);
  const Part<C> part;
  const Addresses at = addresses<C>(smem, part);

  OnlineSoftmax rows;
  Output<C> o = {};

  for (; pipeline.more(); pipeline.advance()) {
    const u32 stage = pipeline.stage * pipeline.stage_bytes;
    pipeline.wait();
    Weights<C> s;
    {
      Scores<C> parts;
      scores<C>(parts, at.q, at.k + stage);
      add_halves<C>(s, parts, smem, pipeline.stage, part);
    }
    if (pipeline.key + C::keys > seen_by_all) mask<C>(s, p, block, part, pipeline.key);
    update<C, P>(rows, s, smem, part, p.scale_log2);
    accumulate<C>(o, smem, at.p, at.v + stage);
  }

  cp_async_wait<0>();  // Q has arrived, even if there was no step
  sync_block();        // no warp reads the last factors any more
  share_state<C>(smem, rows, part);
  store<C, P>(o, smem, p, block);
}

}  // namespace mla_mma

// Paged MLA decode on Hopper: wgmma on tiles in shared memory, V read out of K's tile.
// A block holds 64 packed rows. Its key blocks of 64 go to two warpgroups in turns: a warpgroup
// computes S and P of its own key blocks, and hands P on through shared memory, because each keeps
// half of O's 512 channels, which the P and V of all key blocks go into. So no product is computed
// twice, and one warpgroup's softmax runs under the other's wgmma. A third warpgroup brings K.
#pragma once
#include "mla_wgmma/producer.cuh"

namespace mla_wgmma {

// Rows of Q past the request's end are zero.
template <class C> LAB_DEVICE void load_q(Smem<C>& smem, const MlaParams& p, const Block<C>& b) {
  using T = typename C::T;
  const int c = thread_x() % 8;                    // eight threads copy a row
#pragma unroll 1
  for (int row = thread_x() / 8; row < C::rows; row += C::consumers / 8) {
    const bool valid = row < b.n_rows;
    const int packed = b.first_row + (valid ? row : 0), token = token_of(p, packed);
    const i64 at = b.first_token + token, head = packed - token * p.group;
    const T* nope = static_cast<const T*>(p.q_nope) + at * p.q_nope_stride_token +
                    head * p.q_nope_stride_head + c * chunk_elements;
    const T* pe = static_cast<const T*>(p.q_pe) + at * p.q_pe_stride_token +
                  head * p.q_pe_stride_head + c * chunk_elements;
#pragma unroll
    for (int i = 0; i < C::lines; ++i)
      cp_async_16(chunk<C::width>(smem.q[i][row / 8], row % 8, c),
                  i < C::lines - 1 ? nope + i * C::width : pe, valid);
  }
  cp_async_commit();
  cp_async_wait<0>();
  fence_async_shared();
  named_sync(consumers_done, C::consumers);
}

// This thread holds rows `row` and `row` + 8 of the block: index h. Of 8 columns it has two.
template <class C, class P> struct Consumer {
  using T = typename C::T;
  using Out = typename P::Out;
  static constexpr int channels = C::d_v / 2;      // of O, that a warpgroup has
  // In the units of a descriptor's address: 16 bytes.
  static constexpr int k_step = 32 / 16, atom = sizeof(Atom<C>) / 16;
  static constexpr int octet = C::half_lines * atom, q_line = C::rows / 8 * atom;
  Smem<C>& smem;
  const Params& p;
  const Block<C>& b;
  int group, row, all_see;             // all_see: keys below it are seen by every row
  u64 q_tile, k_tile, pe_tile, v_tile, other_p_tile, other_v_tile;
  float o[128], m[2], l[2];            // l: of this thread's columns, of its own key blocks

  LAB_DEVICE Consumer(Smem<C>& s, const Params& params, const Block<C>& block, int group_)
      : smem(s), p(params), b(block), group(group_),
        row(thread_x() % C::group_threads / 32 * 16 + thread_x() % 32 / 4),
        all_see(least(row_limit(p.mla, b, 0), b.end_key)) {
    constexpr int atom_bytes = sizeof(Atom<C>), octet_bytes = C::half_lines * atom_bytes;
    Stage<C>&own = smem.k[group], &other = smem.k[group ^ 1];
    q_tile = wgmma_descriptor(smem.q, 16, atom_bytes, Swizzle::b128);
    k_tile = wgmma_descriptor(own.half, 16, octet_bytes, Swizzle::b128);
    pe_tile = wgmma_descriptor(own.pe, 16, atom_bytes, Swizzle::b128);
    v_tile = wgmma_descriptor(own.half[group], atom_bytes, octet_bytes, Swizzle::b128);
    other_p_tile = wgmma_descriptor(other.pe, 16, atom_bytes, Swizzle::b128);
    other_v_tile = wgmma_descriptor(other.half[group], atom_bytes, octet_bytes, Swizzle::b128);
#pragma unroll
    for (int h = 0; h < 2; ++h) { m[h] = minus_infinity(); l[h] = 0.f; }
#pragma unroll
    for (int i = 0; i < 128; ++i) o[i] = 0.f;
  }

  LAB_DEVICE void run() {
    const int n = key_blocks<C>(b);
    if (n > 0) {
      if (group == 1) arrive_before_first();
      else turn<true>(0);
      for (int j = 2 - group; j < n; j += 2) turn<false>(j);
      if (n % 2 == group) {            // the last key block was the other warpgroup's
        catch_up();
        accumulate_other();
        wgmma_wait<0>();
        wgmma_hold(o);
      }
    }
    store();
  }

 private:
  // As if a key block had been before the first, and had set no maximum.
  LAB_DEVICE void arrive_before_first() {
    if (thread_x() % 4 == 0)
#pragma unroll
      for (int h = 0; h < 2; ++h) smem.m[1][row + 8 * h] = minus_infinity();
    named_arrive(p_ready + 1, C::consumers);
  }

  // A key block of its own. The other warpgroup's P V before it comes between the parts of S: it
  // frees a stage, and the rest of this one is the last to arrive.
  template <bool First> LAB_DEVICE void turn(int j) {
    const int first_key = b.first_key + j * C::keys, parity = j / 2 % 2;
    const int live = b.end_key - first_key;
    if (live < C::keys && p.box_keys > 0) clear_tail(live, parity);
    float s[32];
    scores<0>(s, parity);
    catch_up();                        // O is rescaled while wgmma computes S
    if constexpr (!First) accumulate_other();
    scores<1>(s, parity);
    if constexpr (!First) release<1>(group ^ 1);
    wgmma_wait<0>();
    wgmma_hold(s);
    if (first_key + C::keys > all_see) mask(s, first_key);
    float by[2];
    update(by, s);
    u32 fragments[C::steps][4];
#pragma unroll
    for (int k = 0; k < C::steps; ++k)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        fragments[k][i] = pack2<T>(s[k * 8 + i * 2], s[k * 8 + i * 2 + 1]);
    hand_over(fragments);
    rescale(by);
    accumulate_own(fragments);
    release<0>(group);
  }

  // S = Q K^T over a part of the channels: the half that the warpgroup has of O; the rest.
  template <int Part> LAB_DEVICE void scores(float (&s)[32], int parity) {
    const int half = group ^ Part;
    // Of a value unknown to the compiler, which would keep a turn's descriptors for the next one:
    // more registers than there are.
    const u64 zero = warp_uniform(0);
    const u64 q = q_tile + zero + half * C::half_lines * q_line;
    const u64 k = k_tile + zero + half * (C::keys / 8) * octet;
    const u64 q_pe = q_tile + zero + (C::lines - 1) * q_line, pe = pe_tile + zero;
    barrier_wait(smem.full[group][Part], parity);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < C::half_lines; ++i)
#pragma unroll
      for (int c = 0; c < C::width / 16; ++c)
        wgmma<T>(s, q + i * q_line + c * k_step, k + i * atom + c * k_step, Part + i + c > 0);
    if constexpr (Part == 1)
#pragma unroll
      for (int c = 0; c < C::width / 16; ++c) wgmma<T>(s, q_pe + c * k_step, pe + c * k_step);
    wgmma_commit();
  }

  // The last block's keys from the end on become zeros: P of zero times a stale NaN would be NaN.
  LAB_DEVICE void clear_tail(int live, int parity) {
    barrier_wait(smem.full[group][0], parity);
    barrier_wait(smem.full[group][1], parity);
    constexpr int chunks = C::lines * 8;
    Stage<C>& tile = smem.k[group];
    for (int i = live * chunks + thread_x() % C::group_threads; i < C::keys * chunks;
         i += C::group_threads) {
      const int key = i / chunks, line = i / 8 % C::lines;
      Atom<C>& lines = line == C::lines - 1
          ? tile.pe[key / 8]
          : tile.half[line / C::half_lines][key / 8][line % C::half_lines];
      *reinterpret_cast<u32x4*>(chunk<C::width>(lines, key % 8, i % 8)) = u32x4{};
    }
    fence_async_shared();
    named_sync(group_done + group, C::group_threads);
  }

  LAB_DEVICE void mask(float (&s)[32], int first_key) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int end = least(row_limit(p.mla, b, row + 8 * h), b.end_key);
#pragma unroll
      for (int i = 0; i < 32; i += 4)
#pragma unroll
        for (int c = 0; c < 2; ++c)
          if (first_key + i * 2 + thread_x() % 4 * 2 + c >= end)
            s[i + 2 * h + c] = minus_infinity();
    }
  }

  // Sets the maximum of row h, and says what O is to be rescaled by.
  LAB_DEVICE float raise(int h, float to) {
    const float by = rescale_of<P>(m[h], to);
    m[h] = to;
    l[h] = l[h] * by;
    return by;
  }
  LAB_DEVICE void rescale(const float (&by)[2]) {
    if (warp_any(!(by[0] == 1.f && by[1] == 1.f)))  // times 1 changes no bit: skip it
#pragma unroll
      for (int i = 0; i < 128; ++i) o[i] = o[i] * by[i / 2 % 2];
  }

  // Waits for P of the block before, which is the other warpgroup's, and takes over its maximum.
  LAB_DEVICE void catch_up() {
    named_sync(p_ready + (group ^ 1), C::consumers);
    float by[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) by[h] = raise(h, smem.m[group ^ 1][row + 8 * h]);
    rescale(by);
  }

  // O += P V.
  LAB_DEVICE void accumulate_other() {
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < C::steps; ++k)
      wgmma<T, Major::k, Major::mn>(o, other_p_tile + k * k_step, other_v_tile + k * 2 * octet);
    wgmma_commit();
  }
  LAB_DEVICE void accumulate_own(const u32 (&fragments)[C::steps][4]) {
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < C::steps; ++k)
      wgmma<T, Major::mn>(o, fragments[k], v_tile + k * 2 * octet);
    wgmma_commit();
  }
  // O is there, but for the `Later` groups of wgmma committed since; its half of the stage is free.
  template <int Later> LAB_DEVICE void release(int stage) {
    wgmma_wait<Later>();
    wgmma_hold(o);
    if (thread_x() % 32 == 0) barrier_arrive(smem.empty[stage][group]);
  }

  // Folds the scores into (m, l), leaves P in s, and says what O is to be rescaled by.
  LAB_DEVICE void update(float (&by)[2], float (&s)[32]) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float top = s[2 * h];
#pragma unroll
      for (int i = 2 * h; i < 32; i += 4) top = maximum(top, maximum(s[i], s[i + 1]));
      top = maximum(top, shfl_xor(top, 1));        // a row's columns lie in four lanes
      top = maximum(top, shfl_xor(top, 2));
      by[h] = raise(h, maximum(m[h], top * p.mla.scale_log2));
      const float shift = shift_of(m[h]);
#pragma unroll
      for (int i = 2 * h; i < 32; i += 4)
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          float& x = s[i + c];
          x = exp2<P>(fma_rn(x, p.mla.scale_log2, -shift));
          if constexpr (P::denominator == Denominator::rounded) x = rounded<P, T>(x);
          l[h] = l[h] + x;
        }
    }
  }

  // P goes to kpe's place, as the A tile of the other warpgroup.
  LAB_DEVICE void hand_over(const u32 (&fragments)[C::steps][4]) {
    named_sync(group_done + group, C::group_threads);  // all four warps have read kpe
    const int lane = thread_x() % 32, line = row / 16 * 16 + lane % 16;
    Atom<C>& lines = smem.k[group].pe[line / 8];
#pragma unroll
    for (int k = 0; k < C::steps; ++k)
      stmatrix_x4(shared_address(chunk<C::width>(lines, line % 8, 2 * k + lane / 16)),
                  fragments[k]);
    if (lane % 4 == 0)
#pragma unroll
      for (int h = 0; h < 2; ++h) smem.m[group][row + 8 * h] = m[h];
    fence_async_shared();
    named_arrive(p_ready + group, C::consumers);
  }

  // Writes out and lse2, or the split's partial State. A warp has 16 rows of 256 channels, which
  // pass through its part of shared memory, to leave as whole lines.
  LAB_DEVICE void store() {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      l[h] = l[h] + shfl_xor(l[h], 1);
      l[h] = l[h] + shfl_xor(l[h], 2);
      if (thread_x() % 4 == 0) smem.l[group][row + 8 * h] = l[h];
    }
    named_sync(consumers_done, C::consumers);      // both parts of l; nobody reads K any more
    const bool whole = b.live_splits <= 1;
    float by[2];                       // one division a row
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float sum = smem.l[0][row + 8 * h] + smem.l[1][row + 8 * h];
      by[h] = whole ? reciprocal_of(sum) : 1.f;
    }
    const i64 first = head_index(p.mla, b, 0);     // the others follow: all heads share K
    const i64 slots = p.mla.splits, first_slot = first * slots + b.split;
    Out* out = static_cast<Out*>(p.mla.out) + first * C::d_v;
    if (!whole) store_rows(p.mla.partial_o + first_slot * C::d_v, slots * C::d_v, by);
    else if constexpr (sizeof(Out) == 2) store_rounded_rows(out, by);
    else store_rows(out, C::d_v, by);
    const int r = thread_x(), n = key_blocks<C>(b);
    if (r >= b.n_rows) return;
    const float sum = smem.l[0][r] + smem.l[1][r];
    const float largest = n > 0 ? smem.m[(n - 1) % 2][r] : minus_infinity();  // the last to be set
    if (whole) {
      store_lse2(p.mla, first + r, largest, sum);
    } else {
      store_global(p.mla.partial_m + first_slot + r * slots, largest);
      store_global(p.mla.partial_l + first_slot + r * slots, sum);
    }
  }
  // A warp's part of a tile's rows, of which `to` has the first, in 16 bits.
  LAB_DEVICE void store_rounded_rows(Out* to, const float (&by)[2]) {
    const int lane = thread_x() % 32, first_row = row / 16 * 16;
    T(&rows)[16][channels] = smem.out[thread_x() / 32];
#pragma unroll
    for (int k = 0; k < channels / 16; ++k) {
      u32 pairs[4];
#pragma unroll
      for (int i = 0; i < 4; ++i)
        pairs[i] = pack2<T>(o[k * 8 + i * 2] * by[i % 2], o[k * 8 + i * 2 + 1] * by[i % 2]);
      stmatrix_x4(shared_address(chunk<channels>(rows, lane % 16, 2 * k + lane / 16)), pairs);
    }
    sync_warp();
    to = to + first_row * C::d_v + group * channels + lane * chunk_elements;
#pragma unroll 4
    for (int r = 0; r < least(16, b.n_rows - first_row); ++r)
      store_global(reinterpret_cast<u32x4*>(to + r * C::d_v), load_chunk(rows, r, lane));
  }
  // The same in fp32, rows `step` numbers apart.
  LAB_DEVICE void store_rows(float* to, i64 step, const float (&by)[2]) {
    const int lane = thread_x() % 32, first_row = row / 16 * 16;
    auto& rows = smem.o[thread_x() / 32];
#pragma unroll
    for (int i = 0; i < 128; i += 2) {
      const int h = i / 2 % 2;
      *reinterpret_cast<u32x2*>(&rows[lane / 4 + 8 * h][i / 4 * 8 + lane % 4 * 2]) = {
          {float_to_bits(o[i] * by[h]), float_to_bits(o[i + 1] * by[h])}};
    }
    sync_warp();
    to = to + first_row * step + group * channels + lane * 4;
#pragma unroll 2
    for (int r = 0; r < least(16, b.n_rows - first_row); ++r)
#pragma unroll
      for (int c = 0; c < channels; c += 128)
        store4(to + r * step + c, *reinterpret_cast<const f32x4*>(&rows[r][lane * 4 + c]));
  }
};

template <class C, class P>
LAB_KERNEL(C::threads, C::blocks_per_sm) mla(LAB_GRID_CONSTANT Params p) {
  static_assert(sizeof(Smem<C>) == LAB_SMEM_BYTES, "the ledger's bytes are the compiler's");
  auto& smem = shared_memory<Smem<C>>();
  if (thread_x() == 0) {
    if (p.box_keys > 0) {
      prefetch_map(p.ckv_map);
      prefetch_map(p.kpe_map);
    }
    for (int stage = 0; stage < C::stages; ++stage)
      for (int i = 0; i < 2; ++i) {
        barrier_init(smem.full[stage][i], producer_warps<C>(p));
        barrier_init(smem.empty[stage][i], C::group_threads / 32);  // a warp's lane 0 arrives
      }
    fence_barrier_init();
  }
  sync_block();                                    // the barriers are there, for every thread
  // Each looks up its own work, in one run of instructions: they come cold from memory.
  const int group = warp_uniform(thread_x() / C::group_threads);
  if (group == 2) {
    lower_registers<56>();
    const Block<C> b = prefill_block<C::rows, true>(p.mla);
    Producer<C> producer(smem, p, b);
    producer.run();
  } else {
    raise_registers<224>();
    const Block<C> b = prefill_block<C::rows, true>(p.mla);
    if (is_idle(b)) return;
    load_q<C>(smem, p.mla, b);
    Consumer<C, P> consumer(smem, p, b, group);
    consumer.run();
    if (b.live_splits > 1 && arrives_last(smem.m[0][0], p.mla, b, ConsumersSync<C>{}))
      merge_splits<P, C::consumers / 32, C::d_v, Division::reciprocal>(p.mla, b);
  }
}

}  // namespace mla_wgmma

// Q, K and V are codes in e4m3. A tile of them is a tile of pairs of codes, which have 16 bits, so
// that boxes, swizzle and descriptors are those of prefill_wgmma.
#pragma once
#include "prefill/wgmma/consumer.cuh"
#include "prefill/wgmma/producer.cuh"

namespace prefill_wgmma_fp8 {
using namespace lab;
using prefill_wgmma::Overlap;

template <class P> constexpr bool is_e4m3 = false;
template <> inline constexpr bool is_e4m3<e4m3x2> = true;

// Q, K and V are their codes times these scales.
struct Descales {
  const float *q_descale, *k_descale, *v_descale;  // [batch, kv_heads]
  i64 q_stride_batch, q_stride_head, k_stride_batch, k_stride_head, v_stride_batch, v_stride_head;

  template <class Work> LAB_DEVICE float of_scores(const Work& work) const {
    const float q =
        load_constant(q_descale + work.request * q_stride_batch + work.kv_head * q_stride_head);
    return q *
           load_constant(k_descale + work.request * k_stride_batch + work.kv_head * k_stride_head);
  }
  template <class Work> LAB_DEVICE float of_values(const Work& work) const {
    return load_constant(v_descale + work.request * v_stride_batch + work.kv_head * v_stride_head);
  }
};
struct Problem : PrefillParams { Descales descales; };
using Params = prefill_wgmma::ParamsOver<Problem>;

// Dqk and Dvo count channels. P_ is the format of the rounded P, and of V in the second product.
template <class T_, int Dqk, int Dvo, int Rows, int Keys, int Warps, int Stages, int BlocksPerSm,
          Overlap Overlap_, class P_>
struct KernelTraits : prefill_wgmma::KernelTraits<e4m3x2, Dqk / 2, Dvo, Rows, Keys, Warps, Stages,
                                                  BlocksPerSm, Overlap_, false> {
  using Params = prefill_wgmma_fp8::Params;
  using Problem = prefill_wgmma_fp8::Problem;
  using Rounded = P_;
  static constexpr bool codes = true, v_is_transposed = is_e4m3<P_>;
  static constexpr bool two_p_buffers = false;
  static constexpr int q_stages = 2, producer_registers = 504 - 2 * LAB_CONSUMER_REGISTERS;
  using RawV = SwizzledTile<e4m3x2, Keys, Dvo / 2>;  // as the TMA brings V
  template <class P, int Columns> struct VOf { using Tile = SwizzledTile<P, Keys, Dvo>; };
  template <int Columns> struct VOf<e4m3x2, Columns> {
    using Tile = SwizzledTile<e4m3x2, Dvo, Columns>;  // [channels, keys], in whole atoms
  };
  using V = typename VOf<P_, (Keys + 127) / 128 * 64>::Tile;
};

template <class C> struct Smem : prefill_wgmma::Smem<C> {
  alignas(1024) typename C::RawV raw[C::stages];
  Pipeline<C::stages> raw_ring;
};

}  // namespace prefill_wgmma_fp8

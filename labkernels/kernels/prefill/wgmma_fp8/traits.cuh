// Q, K and V are codes in e4m3. A tile of them is a tile of pairs of codes, which have 16 bits, so
// that boxes, swizzle and descriptors are those of prefill_wgmma.
#pragma once
#include "prefill/wgmma/consumer.cuh"
#include "prefill/wgmma/producer.cuh"

namespace prefill_wgmma_fp8 {
using namespace lab;
using prefill_wgmma::Overlap;

// Q, K and V are their codes times these scales.
struct Descales {
  const float *q_descale, *k_descale, *v_descale;  // [batch, kv_heads]
  i64 q_stride_batch, q_stride_head, k_stride_batch, k_stride_head, v_stride_batch, v_stride_head;

  template <class Work> LAB_DEVICE float of_scores(const Work& work) const {
    const float q = load_constant(q_descale + work.request * q_stride_batch +
                                  work.kv_head * q_stride_head);
    return q * load_constant(k_descale + work.request * k_stride_batch +
                             work.kv_head * k_stride_head);
  }
  template <class Work> LAB_DEVICE float of_values(const Work& work) const {
    return load_constant(v_descale + work.request * v_stride_batch + work.kv_head * v_stride_head);
  }
};
struct Problem : PrefillParams { Descales descales; };
using Params = prefill_wgmma::ParamsOver<Problem>;

// Dqk and Dvo count channels. With `Transposed`, V comes as [channels, keys], in the order of keys
// that the second product needs, and no warp transposes: to measure what the transposition costs.
template <class T_, int Dqk, int Dvo, int Rows, int Keys, int Warps, int Stages, int BlocksPerSm,
          Overlap Overlap_>
struct KernelTraits : prefill_wgmma::KernelTraits<e4m3x2, Dqk / 2, Dvo, Rows, Keys, Warps, Stages,
                                                  BlocksPerSm, Overlap_, false> {
  using Base = prefill_wgmma::KernelTraits<e4m3x2, Dqk / 2, Dvo, Rows, Keys, Warps, Stages,
                                           BlocksPerSm, Overlap_, false>;
  using Params = prefill_wgmma_fp8::Params;
  using Problem = prefill_wgmma_fp8::Problem;
  static constexpr bool codes = true;
  static constexpr int fragments = Dvo / 2 + Keys / 2 + 2 * (Keys / 8);
  static constexpr bool two_p_buffers = false;
  static constexpr int q_stages = 2, producer_registers = 504 - 2 * LAB_CONSUMER_REGISTERS;
  using RawV = SwizzledTile<e4m3x2, Keys, Dvo / 2>;  // as the TMA brings V
  using V = SwizzledTile<e4m3x2, Dvo, (Keys + 127) / 128 * 64>;  // V transposed: [channels, keys]
};

template <class C> struct Smem : prefill_wgmma::Smem<C> {
  alignas(1024) typename C::RawV raw[C::stages];
  Pipeline<C::stages> raw_ring;
};

}  // namespace prefill_wgmma_fp8

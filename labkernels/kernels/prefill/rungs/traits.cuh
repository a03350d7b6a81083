// The rungs of the ladder beside prefill/wgmma_basic: each replaces functions of that kernel, which
// is compiled as the rung that the traits name. The rungs below the kernel are in below.cuh, those
// above it in above.cuh.
#pragma once
#include "prefill/wgmma_basic/kernel.cuh"

namespace prefill_wgmma_basic {

// [rung: names]
// Each has one idea more than the one before; prefill/wgmma_basic stands between tma and within.
enum class Rung { fma, mma, tma, within, between, persistent, ahead };

template <class T, int Dqk, int Dvo, int Rows, int Keys, int Warps, int Stages, int BlocksPerSm,
          Rung Rung_, bool Paged>
struct RungTraits : KernelTraits<T, Dqk, Dvo, Rows, Keys, Warps, Stages, BlocksPerSm,
                                 KeyOrder::descending, Paged> {
  static constexpr Rung rung = Rung_;
};
// [/rung: names]

}  // namespace prefill_wgmma_basic

// Each rung of the ladder beside prefill/wgmma_basic replaces functions of that kernel, which is
// compiled as the rung that the traits name. The rungs below the kernel are in below.cuh, and the
// rungs above it in above.cuh.
#pragma once
#include "prefill/wgmma_basic/kernel.cuh"

namespace prefill_wgmma_basic {

// [rung: names]
// Each rung has one idea more than the rung before; prefill/wgmma_basic is between tma and within.
enum class Rung { fma, mma, tma, within, between, persistent, ahead };

template <class T, int Dqk, int Dvo, int Rows, int Keys, int Warps, int Stages, int BlocksPerSm,
          Rung Rung_, bool Paged>
struct RungTraits : KernelTraits<T, Dqk, Dvo, Rows, Keys, Warps, Stages, BlocksPerSm,
                                 KeyOrder::descending, Paged> {
  static constexpr Rung rung = Rung_;
};
// [/rung: names]

}  // namespace prefill_wgmma_basic

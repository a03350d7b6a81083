"""triton_prefill: the same prefill in Triton, tensor cores on or off by a constexpr."""

from labkernels.kernels.kernel import SINCE_AMPERE, Shape
from labkernels.kernels.packed_gqa.tile import PrefillTile
from labkernels.kernels.prefill.kernel import PrefillKernel
from labkernels.policy import CUDA_CORES, TENSOR_CORES, NumericPolicy
from labkernels.variant import FEATURES

FEW_ROWS = 16  # the least that tl.dot takes
WIDE = {
    64: PrefillTile(128, 64, 4, 3, 2),
    128: PrefillTile(64, 64, 4, 3, 1),
    192: PrefillTile(64, 64, 4, 2, 2),
    256: PrefillTile(128, 64, 8, 2, 1),
}
# Triton loads what a bias needs ahead, too: with a mask, WIDE[256] would not fit shared memory,
# and tiles between these two spill with Triton 3.7.
WIDE_WITH_BIAS = PrefillTile(64, 32, 8, 2, 1)


class TritonPrefill(PrefillKernel):
    """A Triton kernel whose splits a second launch merges."""

    name = "triton_prefill"
    language = "triton"
    idea = "One Triton source; tl.dot on tensor cores or in fp32 FMAs, chosen by a constexpr."
    parent = "reference_prefill"
    needs = SINCE_AMPERE
    policies = (TENSOR_CORES, CUDA_CORES)
    features = FEATURES

    def tiles(self, shape: Shape, policy: NumericPolicy) -> tuple[PrefillTile, ...]:
        """Return the tiles; `stages` is Triton's num_stages, blocks_per_sm what registers allow.

        Without tensor cores Triton keeps the fp32 operands of tl.dot in registers: more rows or
        keys, or fewer warps, spill.
        """
        if policy == CUDA_CORES:
            wide, few = PrefillTile(32, 32, 8, 1, 1), PrefillTile(16, 16, 8, 1, 2)
            if shape.width == 256:
                return (few,)
        else:
            wide = WIDE[shape.width]
            few = PrefillTile(FEW_ROWS, 64 if shape.width <= 128 else 32, 4, 2, 2)
            if shape.width == 256 and "bias" in shape.variant.features:
                wide = WIDE_WITH_BIAS
        return (wide, few) if shape.rows > FEW_ROWS else (few, wide)


KERNEL = TritonPrefill()

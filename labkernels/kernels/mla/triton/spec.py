"""triton_mla: the same MLA decode in Triton, tensor cores on or off by a constexpr."""

from labkernels.kernels.kernel import SINCE_AMPERE, Shape
from labkernels.kernels.mla.kernel import MlaKernel
from labkernels.kernels.packed_gqa.tile import PrefillTile
from labkernels.policy import CUDA_CORES, TENSOR_CORES, NumericPolicy

# Tiles by rows; 16 is the least that tl.dot takes. 64 x 64 and 128 rows spill.
OPTIONS = (
    PrefillTile(16, 32, 4, 2, 2),
    PrefillTile(16, 64, 8, 2, 1),
    PrefillTile(32, 64, 8, 2, 1),
    PrefillTile(64, 32, 8, 2, 1),
)


class TritonMla(MlaKernel):
    """A Triton kernel whose splits a second launch merges."""

    name = "triton_mla"
    language = "triton"
    idea = "One Triton source; a latent row is loaded once for both products."
    parent = "reference_mla"
    needs = SINCE_AMPERE
    policies = (TENSOR_CORES, CUDA_CORES)

    def tiles(self, shape: Shape, policy: NumericPolicy) -> tuple[PrefillTile, ...]:
        """Return the tiles; `stages` is Triton's num_stages, blocks_per_sm what registers allow.

        Without tensor cores Triton keeps the fp32 operands of tl.dot in registers: more rows or
        keys spill.
        """
        if policy == CUDA_CORES:
            return (PrefillTile(16, 16, 8, 1, 1),)
        wanted = min(max(shape.rows, 16), 64)
        return tuple(
            sorted(OPTIONS, key=lambda tile: (tile.q_rows < wanted, abs(tile.q_rows - wanted)))
        )


KERNEL = TritonMla()

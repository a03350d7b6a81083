"""mla_mma: tensor cores on; each warp has some of the 512 channels of O."""

from types import MappingProxyType

from labkernels.budget.compiler import Asked
from labkernels.budget.ledger import Line
from labkernels.budget.quantity import number
from labkernels.budget.registers import fragment
from labkernels.kernels import cuda_kernel
from labkernels.kernels.kernel import SINCE_AMPERE, Instance, Shape
from labkernels.kernels.mla.kernel import CudaMlaKernel
from labkernels.kernels.packed_gqa.tile import PrefillTile
from labkernels.policy import DENOMINATORS, TENSOR_CORES, NumericPolicy, policies

PRODUCTS = "S or P V"
PADDING = 8  # elements after a row of P
FEW = (PrefillTile(16, 64, 4, 2, 1), PrefillTile(16, 32, 4, 2, 2))
SOME = (PrefillTile(32, 64, 8, 2, 1), PrefillTile(32, 32, 4, 2, 2))
# K/V tiles and stages as libraries choose them by shared memory: 228, 164 and 100 KiB per SM.
BY_SHARED_MEMORY = (
    PrefillTile(64, 64, 8, 2, 1),
    PrefillTile(64, 32, 8, 2, 1),
    PrefillTile(64, 16, 8, 1, 1),
)


class MlaMma(CudaMlaKernel):
    """A kernel in which the warps of a row tile share its keys."""

    name = "mla_mma"
    idea = "The warps share S and P, and each holds all rows of O in some of the 512 channels."
    parent = "mla_fma"
    numbers = MappingProxyType({"P_PADDING": PADDING})
    needs = SINCE_AMPERE
    policies = policies(TENSOR_CORES, denominators=DENOMINATORS)

    def tiles(self, shape: Shape, policy: NumericPolicy) -> tuple[PrefillTile, ...]:
        """Return the tiles; for each number of rows one takes at most 99 KiB of shared memory."""
        if shape.rows <= FEW[0].q_rows:
            return (*FEW, *SOME, *BY_SHARED_MEMORY)
        if shape.rows <= SOME[0].q_rows:
            return (*SOME, *FEW, *BY_SHARED_MEMORY)
        return (*BY_SHARED_MEMORY, *SOME, *FEW)

    def smem_lines(self, instance: Instance) -> tuple[Line, ...]:
        """Return the shared memory of a block, in bytes."""
        of = cuda_kernel.sizes(instance)
        shares = of.warps / (of.rows / 16)
        return (
            cuda_kernel.query_line(instance),
            Line(
                "K stages",
                of.stages * of.keys * of.dim * of.width,
                note="their first 512 channels are V",
            ),
            Line(
                "P",
                of.rows * (of.keys + PADDING) * of.width,
                note="padded against bank conflicts",
            ),
            Line("maxima, then l", shares * of.rows * cuda_kernel.FP32, "of the warps of 16 rows"),
            Line("factors of O, and m", 2 * of.rows * cuda_kernel.FP32),
        )

    def register_lines(self, instance: Instance) -> tuple[Line, ...]:
        """Return the fragments and addresses of a thread, in registers."""
        of = cuda_kernel.sizes(instance)
        row_tiles = of.rows / 16
        keys = of.keys * row_tiles / of.warps  # a warp computes their weights, for 16 rows
        # pairs of warps share rows or keys of S
        by_rows, by_keys = keys.value >= 16 and row_tiles.value > 1, keys.value < 16
        score_rows = number(32 if by_rows else 16, "rows")
        score_keys = 2 * keys if by_keys else keys
        pairs = "a pair's, over half of the channels" if by_rows or by_keys else ""

        def line(name: str, rows, columns, bits: int, phase: str, note: str = "") -> Line:
            held = fragment(rows, columns, bits=bits)
            return Line(name, held, note, shares=PRODUCTS, phase=phase)

        return (
            Line(
                "O accumulator",
                fragment(of.rows, of.dim_v / of.warps),
                note="the warp's channels of all rows",
            ),
            line("S", score_rows, score_keys, 32, "Q K^T", pairs),
            line("Q fragments", score_rows, 16, 16, "Q K^T"),
            line("K fragment", 16, 16, 16, "Q K^T"),
            line("P fragments", of.rows, 16, 16, "P V"),
            line("V fragment", 16, 16, 16, "P V"),
            Line("m and l", 4, "of 2 of the 16 rows that the warp has weights of"),
        )

    def asked(self, instance: Instance, arch: str) -> Asked:
        """Return the features of a warp that reads stages shared by the block."""
        warps = cuda_kernel.sizes(instance).warps
        features = cuda_kernel.step_features(instance, keys=16, warps=warps)
        return Asked(features | {"latent rows": number(1)})


KERNEL = MlaMma()

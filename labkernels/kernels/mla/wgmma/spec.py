"""mla_wgmma: Hopper's wgmma and TMA, O's 512 channels split over two warpgroups."""

from labkernels.budget.ledger import Line
from labkernels.budget.quantity import number
from labkernels.budget.registers import fragment
from labkernels.kernels import cuda_kernel
from labkernels.kernels.kernel import HOPPER, Instance, Shape
from labkernels.kernels.mla.kernel import CudaMlaKernel
from labkernels.kernels.packed_gqa.tile import PrefillTile
from labkernels.policy import DENOMINATORS, TENSOR_CORES, NumericPolicy, policies

WARPGROUPS = 2  # that compute; a third warpgroup loads K
CONSUMER_REGISTERS = 224  # per computing thread, after the third warpgroup gave up registers
BARRIER_BYTES = 8
HALF_LINES = 4  # boxes of ATOM_COLUMNS in a warpgroup's half of V's channels
FROM_ROWS = 17  # up to 16 rows have a separate tile in mla_mma
TILE = PrefillTile(64, 64, 12, 2, 1)


class MlaWgmma(CudaMlaKernel):
    """Two warpgroups compute, and a third loads K."""

    name = "mla_wgmma"
    idea = "Two warpgroups take key blocks in turns, and half of O each; V is read out of K's tile."
    parent = "mla_mma"
    needs = HOPPER
    # O, S and P leave no registers for the temporaries of a polynomial.
    policies = policies(TENSOR_CORES, denominators=DENOMINATORS, exp2s=("mufu",))
    params = "mla_wgmma::Params"
    program_in = ".launch"
    smem_alignment = cuda_kernel.SWIZZLE_ALIGNMENT
    division = "reciprocal"  # a merge has fewer instructions to fetch than with divisions

    def yields(self, shape: Shape) -> str | None:
        """Return a reason for few rows, for which a tile of 16 rows is as fast."""
        if shape.rows < FROM_ROWS:
            return f"is for {FROM_ROWS} rows or more, not for {shape.rows}"
        return None

    def thread_registers(self, instance: Instance) -> int:
        """Return a computing thread's registers, after the third warpgroup gave up some."""
        return CONSUMER_REGISTERS

    def tiles(self, shape: Shape, policy: NumericPolicy) -> tuple[PrefillTile, ...]:
        """Return the one tile: a wgmma has 64 rows, and at most two stages of 64 keys fit."""
        return (TILE,)

    def smem_lines(self, instance: Instance) -> tuple[Line, ...]:
        """Return the shared memory of a block, in bytes."""
        of = cuda_kernel.sizes(instance)
        return (
            cuda_kernel.query_line(instance),
            Line(
                "K stages",
                of.stages * of.keys * of.dim * of.width,
                note="V is K's first 512 channels; P takes the place of its last 64",
            ),
            Line(
                "m and l",
                2 * number(WARPGROUPS, "warpgroups") * of.rows * cuda_kernel.FP32,
            ),
            Line(
                "barriers",
                of.stages * number(WARPGROUPS, "warpgroups") * 2 * number(BARRIER_BYTES, "B"),
                note="full and empty",
            ),
        )

    def register_lines(self, instance: Instance) -> tuple[Line, ...]:
        """Return the fragments and addresses of a thread that computes, in registers."""
        of, rows = cuda_kernel.sizes(instance), number(16, "rows")  # of a warp
        return (
            Line(
                "O accumulator",
                fragment(rows, of.dim_v / WARPGROUPS),
                note="of a warp: half of O's channels, for the warpgroup has half",
            ),
            Line("S, then P", fragment(rows, of.keys)),
            Line("P rounded", fragment(rows, of.keys, bits=16)),
            Line("m and l", 4, "2 of each for rows g and g + 8"),
        )


KERNEL = MlaWgmma()

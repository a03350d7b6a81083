"""prefill_wgmma_basic: wgmma and the TMA in one loop, without overlap; the rung to read first."""

from dataclasses import replace

from labkernels.budget.ledger import Line
from labkernels.budget.quantity import number
from labkernels.budget.registers import fragment
from labkernels.cuda.compiler.specialization import Specialization
from labkernels.kernels import cuda_kernel
from labkernels.kernels.kernel import Instance, Shape
from labkernels.kernels.packed_gqa.tile import PrefillTile
from labkernels.kernels.prefill.kernel import TmaPrefill
from labkernels.policy import DENOMINATORS, TENSOR_CORES, NumericPolicy, policies

ROWS, WARPS, STAGES = 128, 12, 2
WARP_ROWS = 16
KEYS = {64: 128, 128: 128, 192: 128, 256: 80}  # keys of a step by head_dim, as the registers allow
CONSUMER_REGISTERS = 232  # per thread
# The ladder's other rungs: stages, and the word in the tile's label. Each rung adds one idea to the
# rung before. The kernel itself stands between "tma" and "within".
RUNGS = (
    (1, "fma"),
    (1, "mma"),
    (2, "mma"),
    (2, "tma"),
    (2, "within"),
    (2, "between"),
    (2, "persistent"),
    (2, "ahead"),
)
RUNGS_HEADER = "prefill/rungs/kernel.cuh"


class PrefillWgmmaBasic(TmaPrefill):
    """One warp loads, two warpgroups compute."""

    name = "prefill_wgmma_basic"
    idea = "One warp asks the TMA for tiles; two warpgroups multiply by wgmma, in one plain loop."
    parent = "prefill_mma"
    policies = policies(TENSOR_CORES, denominators=DENOMINATORS)
    padded_dims = ()
    layouts = ("ragged",)
    params = "prefill_wgmma_basic::Params"

    def yields(self, shape: Shape) -> str | None:
        """Return the reason: another kernel is faster on every shape."""
        return "is there to be read: prefill_wgmma is this kernel with overlap"

    def thread_registers(self, instance: Instance) -> int:
        """Registers of a consumer's thread, after the loading warpgroup gave up some."""
        return CONSUMER_REGISTERS

    def tiles(self, shape: Shape, policy: NumericPolicy) -> tuple[PrefillTile, ...]:
        """Return the one tile of a head_dim."""
        keys = KEYS[shape.head_dim]
        return (PrefillTile(ROWS, keys, WARPS, STAGES, 1, key_order="descending"),)

    def named_tiles(self, head_dim: int) -> tuple[PrefillTile, ...]:
        """Return the other rungs of the ladder."""
        keys = KEYS[head_dim]
        plain = PrefillTile(ROWS, keys, WARPS, STAGES, 1, key_order="descending")
        return tuple(replace(plain, stages=n, overlap=rung) for n, rung in RUNGS)

    def smem_lines(self, instance: Instance) -> tuple[Line, ...]:
        """Return the shared memory of a block, in bytes."""
        of = cuda_kernel.sizes(instance)
        return (
            cuda_kernel.query_line(instance),
            Line("K and V stages", of.stages * of.keys * (of.dim + of.dim_v) * of.width),
            Line("barriers", (2 * (2 * of.stages + 1) + 1) * number(8, "B"), "full and empty"),
            Line("is_last_split", number(4, "B")),
        )

    def register_lines(self, instance: Instance) -> tuple[Line, ...]:
        """Return the fragments and addresses of a consumer's thread, in registers."""
        of, rows = cuda_kernel.sizes(instance), number(WARP_ROWS, "rows")
        blocks = 2 if instance.tile.overlap == "ahead" else 1
        return (
            Line("O accumulator", fragment(rows, of.dim_v)),
            Line("S, then P", fragment(rows, of.keys)),
            Line("P rounded", number(blocks, "blocks") * fragment(rows, of.keys, bits=16)),
            Line("m and l", rows / 4, "of 2 of a warp's rows"),
        )

    def specialization(self, instance: Instance) -> Specialization:
        """Return what is compiled: another rung of the ladder replaces functions of kernel.cuh."""
        made = super().specialization(instance)
        return replace(made, header=RUNGS_HEADER) if instance.tile.overlap else made

    def order(self, instance: Instance) -> str:
        """Return another rung's name in the place of the order of keys."""
        rung = instance.tile.overlap
        return f"{instance.kernel}::Rung::{rung}" if rung else super().order(instance)

    def template(self, instance: Instance) -> str:
        """Return the C++ name of the instance; the other rungs have traits of their own."""
        name = super().template(instance)
        return name.replace("::KernelTraits", "::RungTraits") if instance.tile.overlap else name


KERNEL = PrefillWgmmaBasic()

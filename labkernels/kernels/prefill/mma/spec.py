"""prefill_mma: tensor cores on, FlashAttention-2's order of work on mma.sync."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from types import MappingProxyType

from labkernels.budget.compiler import Asked
from labkernels.budget.ledger import Line
from labkernels.budget.registers import WARP_THREADS, fragment
from labkernels.budget.tile_model import StepWork
from labkernels.kernels import cuda_kernel
from labkernels.kernels.cuda_kernel import OVERLAY
from labkernels.kernels.kernel import SINCE_AMPERE, Instance, Shape
from labkernels.kernels.packed_gqa.tile import PrefillTile
from labkernels.kernels.prefill import kernel as prefill_kernel
from labkernels.kernels.prefill.kernel import CudaPrefillKernel
from labkernels.policy import DENOMINATORS, TENSOR_CORES, NumericPolicy, policies
from labkernels.variant import FEATURES

FEW_ROWS = 16  # rows up to which there is one tile, whose warps split the keys
CROWDED = 32 * 128  # rows x channels per warp; from here on, ascending keys spill
MMA_BYTES = 2  # bytes of an operand's element
SCHEDULERS = 4  # of an SM
HELD_SIZE = 4096  # a warp keeps Q in registers up to this many rows x (channels + keys)


def _warp_rows(instance: Instance) -> int:
    return FEW_ROWS if instance.rows == FEW_ROWS else instance.rows // instance.tile.warps


def _warp_keys(instance: Instance) -> int:
    tile = instance.tile
    return tile.keys // tile.warps if instance.rows == FEW_ROWS else tile.keys


def _holds_q(instance: Instance) -> bool:
    return _warp_rows(instance) * (instance.width + _warp_keys(instance)) <= HELD_SIZE


class PrefillMma(CudaPrefillKernel):
    """A kernel whose warps have 16, 32 or 64 rows each; in a tile of few rows, some keys."""

    name = "prefill_mma"
    idea = "A warp takes whole rows through shared stages of K and V; P never leaves its registers."
    parent = "prefill_fma"
    numbers = MappingProxyType({"HELD_SIZE": HELD_SIZE})
    features = FEATURES
    needs = SINCE_AMPERE
    policies = policies(TENSOR_CORES, denominators=DENOMINATORS)

    def tiles(self, shape: Shape, policy: NumericPolicy) -> tuple[PrefillTile, ...]:
        """Return tile options that fit the registers; at each head_dim one takes at most 99 KiB."""
        few, *wide = {
            64: (
                PrefillTile(16, 128, 4, 2, 2),
                PrefillTile(128, 64, 4, 2, 2),
                PrefillTile(128, 128, 8, 2, 1),
                PrefillTile(64, 64, 4, 2, 3),
                PrefillTile(64, 128, 4, 2, 2),
                PrefillTile(64, 256, 4, 1, 1),
            ),
            128: (
                PrefillTile(16, 128, 4, 1, 2),
                PrefillTile(128, 64, 4, 2, 2),
                PrefillTile(128, 128, 8, 1, 1),
                PrefillTile(64, 64, 4, 2, 2),
                PrefillTile(64, 128, 4, 1, 2),
            ),
            192: (
                PrefillTile(16, 128, 4, 1, 2),
                PrefillTile(128, 32, 4, 2, 2),
                PrefillTile(64, 64, 4, 1, 2),
            ),
            256: (
                PrefillTile(16, 64, 4, 1, 2),
                PrefillTile(64, 64, 4, 1, 2),
                PrefillTile(128, 64, 8, 2, 1),
            ),
        }[shape.width]
        few, *backward = (replace(tile, key_order="descending") for tile in (few, *wide))
        forward = [tile for tile in wide if tile.q_rows // tile.warps * shape.width < CROWDED]
        return (few, *backward, *forward) if shape.rows <= FEW_ROWS else (*backward, few, *forward)

    def space(self, head_dim: int) -> Iterator[PrefillTile]:
        """Yield every tile with rows of whole mma tiles and keys copied in whole passes."""
        for q_rows, warps, keys in product((64, 128, 256), (4, 8), (32, 64, 96, 128)):
            warp_rows = q_rows // warps
            if warp_rows >= 16 and keys % (4 * warps) == 0:
                for stages, blocks in product((1, 2), (1, 2, 3)):
                    yield PrefillTile(q_rows, keys, warps, stages, blocks, "descending")

    def step_work(self, instance: Instance) -> StepWork:
        """Return the work of a step; each warp reads all of K and V, but not for few rows."""
        tile, rows = instance.tile, instance.rows
        flops = prefill_kernel.step_flops(instance)
        kv_bytes = tile.keys * (instance.width + instance.width_v) * MMA_BYTES
        readers = tile.warps if rows > FEW_ROWS else 1
        q_bytes = 0 if _holds_q(instance) else rows * instance.width * MMA_BYTES
        read_bytes = readers * kv_bytes + q_bytes
        # per warp instruction: an mma is 4096 FLOP, a load of fragments 512 bytes
        loads_and_products = WARP_THREADS * (flops // 4096 + read_bytes // 512)
        return StepWork(
            flops=flops,
            instruction="mma.sync",
            exps=rows * tile.keys,
            smem_bytes=read_bytes + kv_bytes,
            lane_ops=prefill_kernel.softmax_ops(instance) + loads_and_products,
            streams=tile.warps / SCHEDULERS,
        )

    def smem_lines(self, instance: Instance) -> tuple[Line, ...]:
        """Return the shared memory of a block, in bytes."""
        of = cuda_kernel.sizes(instance)
        lines = [
            Line(
                "K and V stages",
                of.stages * of.keys * (of.dim + of.dim_v) * of.width,
                shares=OVERLAY,
                phase="loop",
            )
        ]
        if instance.rows == FEW_ROWS:
            lines += cuda_kernel.states_lines(instance)
        return (cuda_kernel.query_line(instance), *lines)

    def register_lines(self, instance: Instance) -> tuple[Line, ...]:
        """Return the fragments and addresses of a thread, in registers."""
        of = cuda_kernel.sizes(instance)
        few = instance.rows == FEW_ROWS
        rows, keys = (of.rows, of.keys / of.warps) if few else (of.rows / of.warps, of.keys)
        held = of.dim if _holds_q(instance) else 16
        return (
            Line("Q fragments", fragment(rows, held, bits=16)),
            Line("O accumulator", fragment(rows, of.dim_v)),
            Line("S, then P", fragment(rows, keys)),
            Line("P rounded", fragment(rows, 16, bits=16)),
            Line("K or V fragment", fragment(16, 16, bits=16)),
            Line("m and l", rows / 4, "2 per 8 of the warp's rows"),
        )

    def asked(self, instance: Instance, arch: str) -> Asked:
        """Return the features of a warp that reads stages shared by the block."""
        of = cuda_kernel.sizes(instance)
        keys = of.keys / of.warps if instance.rows == FEW_ROWS else of.keys
        return Asked(cuda_kernel.step_features(instance, keys=keys, warps=of.warps))


KERNEL = PrefillMma()

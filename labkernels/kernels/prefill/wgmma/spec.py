"""prefill_wgmma: tensor cores on, by Hopper's wgmma, TMA and warpgroups with different roles."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from types import MappingProxyType

from labkernels import formats
from labkernels.budget.ledger import Line
from labkernels.budget.quantity import number, symbol
from labkernels.budget.registers import fragment
from labkernels.budget.tile_model import StepWork
from labkernels.cuda.compiler.specialization import ATOM_ROWS
from labkernels.kernels import cuda_kernel
from labkernels.kernels.kernel import Instance, Shape
from labkernels.kernels.packed_gqa.tile import PrefillTile
from labkernels.kernels.prefill import kernel as prefill_kernel
from labkernels.kernels.prefill.kernel import TmaPrefill
from labkernels.policy import DENOMINATORS, TENSOR_CORES, NumericPolicy, policies
from labkernels.variant import FEATURES

WARPGROUP_ROWS = 64
CONSUMER_REGISTERS = {12: 232, 16: 160}  # registers per thread, by the block's warps
OTHER_REGISTERS = 32  # registers beside the fragments; one more per 16 channels of Q
TWO_CONSUMERS = 12  # warps of a block, with the producers' four
FROM_ROWS = 17  # up to 16 rows have a separate tile in prefill_mma

Q_TWICE_BYTES = 226 * 1024  # if K, V and two tiles of Q fit it, the next tile's Q loads early
# stages and bytes of ScheduledTile, and bytes of its KeyBlocks per consumer warpgroup
TILE_STAGES, TILE_BYTES, KEY_BLOCKS_BYTES = 4, 80, 16
NUMBERS = {
    "OTHER_REGISTERS": OTHER_REGISTERS,
    "Q_TWICE_BYTES": Q_TWICE_BYTES,
    "TILE_STAGES": TILE_STAGES,
}

# the C++ Overlap of a tile, by the word in its label
OVERLAPS = {"none": "none", "within": "intra_warpgroup", "between": "inter_warpgroup"}
# rows, keys, warps, stages, overlap; the first is preferred, and also offered with other overlaps
SHAPES = {
    64: ((192, 128, 16, 4, "between"), (128, 128, 12, 2, "between")),
    128: ((128, 128, 12, 2, "within"), (128, 176, 12, 2, "between")),
    192: ((128, 128, 12, 2, "between"),),
    256: ((128, 80, 12, 2, "within"),),
}
# tiles for short requests and windows: 512 keys are eight blocks of 64 keys, but 6.4 blocks of 80,
# and the 1,088 keys that 64 tokens see of a window of 1,024 are 17 blocks, but up to 15 of 80
SHAPES_OF_SHORT = {256: ((128, 64, 12, 2, "within"),)}
SHORT_ROWS, SHORT_WINDOW = 512, 2048
WIDE = 128  # channels
# tiles for pages that hold no box: threads copy the keys, and a third stage hides the latency
SHAPES_OF_COPIES = {128: ((128, 128, 12, 3, "between"),)}


def tile_of(rows: int, keys: int, warps: int, stages: int, overlap: str) -> PrefillTile:
    """Return a tile of one block per SM, whose keys go from the last to the first."""
    return PrefillTile(rows, keys, warps, stages, 1, key_order="descending", overlap=overlap)


class PrefillWgmma(TmaPrefill):
    """One warpgroup loads, two or three compute."""

    name = "prefill_wgmma"
    idea = "Warps ask the TMA for tiles; warpgroups multiply, each while another exponentiates."
    parent = "prefill_wgmma_basic"
    features = FEATURES
    policies = policies(TENSOR_CORES, denominators=DENOMINATORS)
    params = "prefill_wgmma::Params"
    numbers = MappingProxyType(NUMBERS)

    def yields(self, shape: Shape) -> str | None:
        """Return a reason for few rows, for which most of a tile is padding."""
        if shape.rows < FROM_ROWS:
            return f"is for {FROM_ROWS} rows or more, not for {shape.rows}"
        return None

    def thread_registers(self, instance: Instance) -> int:
        """Return the registers of a consumer's thread, after the producers gave up some."""
        return CONSUMER_REGISTERS[instance.tile.warps]

    def tiles(self, shape: Shape, policy: NumericPolicy) -> tuple[PrefillTile, ...]:
        """Return the tiles that fit the registers, the one preferred for rows and pages first."""
        # three consumers leave ptxas no registers for other policies than the default, for slopes,
        # for bits, nor for "none"
        shaped = {"soft_cap", "alibi", "mask", "bias"} & set(shape.variant.features)
        plain = policy.exp2 == "mufu" and policy.denominator == "unrounded"
        plain = plain and shaped <= {"soft_cap"}
        options = (tile_of(*numbers) for numbers in SHAPES[shape.width])
        first, *others = (t for t in options if plain or t.warps == TWO_CONSUMERS)
        overlaps = ("between", "within", *(("none",) if first.warps == TWO_CONSUMERS else ()))
        rest = (replace(first, overlap=each) for each in overlaps if each != first.overlap)
        of_short, of_copies = (
            tuple(tile_of(*numbers) for numbers in shapes.get(shape.width, ()))
            for shapes in (SHAPES_OF_SHORT, SHAPES_OF_COPIES)
        )
        tiles = (first, *others, *rest)
        if shaped:  # two softmaxes at a time leave ptxas too few registers for wide heads
            wide = shape.width > WIDE
            tiles = tuple(sorted(tiles, key=lambda tile: wide and tile.overlap != "within"))
        boxes = shape.page_size % ATOM_ROWS == 0 and shape.width == shape.head_dim
        copied = shape.layout == "paged" and not boxes
        left = shape.variant.window_left
        few = shape.rows <= SHORT_ROWS and not copied
        short = bool(shaped) or few or (left is not None and left <= SHORT_WINDOW)
        tiles = (*of_short, *tiles) if short else (*tiles, *of_short)
        if shape.layout != "paged":
            return tiles
        return (*of_copies, *tiles) if copied else (*tiles, *of_copies)

    def space(self, head_dim: int) -> Iterator[PrefillTile]:
        """Yield tiles of two or three consumers, with keys of whole wgmmas and every overlap."""
        for consumers, keys in product((2, 3), (64, 80, 96, 128, 160, 176, 192)):
            for stages, overlap in product((2, 4), ("between", "within", "none")):
                rows, warps = WARPGROUP_ROWS * consumers, 4 * (consumers + 1)
                yield PrefillTile(rows, keys, warps, stages, 1, "descending", overlap)

    def step_work(self, instance: Instance) -> StepWork:
        """Return the work of a block's step; each consumer reads all of Q, K and V, by wgmma."""
        tile, consumers = instance.tile, instance.rows // WARPGROUP_ROWS
        width = formats.named(instance.dtype).bytes
        kv_bytes = tile.keys * (instance.width + instance.width_v) * width
        # a warpgroup whose softmax overlaps with products counts as two streams
        halves = 1 if tile.overlap == "none" else 2
        return StepWork(
            flops=prefill_kernel.step_flops(instance),
            instruction="wgmma",
            exps=instance.rows * tile.keys,
            smem_bytes=(consumers + 1) * kv_bytes + instance.rows * instance.width * width,
            lane_ops=prefill_kernel.softmax_ops(instance),
            streams=consumers * halves,
        )

    def smem_lines(self, instance: Instance) -> tuple[Line, ...]:
        """Return the shared memory of a block, in bytes."""
        of = cuda_kernel.sizes(instance)
        query = cuda_kernel.query_line(instance).exact
        keys = of.stages * of.keys * (of.dim + of.dim_v) * of.width
        twice = 2 * query.value + keys.value <= Q_TWICE_BYTES
        q_stages = symbol("d_Q", 2 if twice else 1, "stages of Q", "stages of Q")
        rings = 2 * of.stages + q_stages + TILE_STAGES
        scheduled = TILE_BYTES + of.rows / WARPGROUP_ROWS * KEY_BLOCKS_BYTES
        return (
            Line("Q", q_stages * query),
            Line("K and V stages", keys),
            Line("barriers", (2 * rings + 2) * number(8, "B"), "full and empty"),
            Line("work tiles", TILE_STAGES * scheduled * number(1, "B")),
            Line("is_last_split", number(4, "B")),
        )

    def register_lines(self, instance: Instance) -> tuple[Line, ...]:
        """Return the fragments and addresses of a consumer's thread, in registers."""
        of, rows = cuda_kernel.sizes(instance), number(WARPGROUP_ROWS // 4, "rows")
        output, scores = fragment(rows, of.dim_v), fragment(rows, of.keys)
        probabilities = fragment(rows, of.keys, bits=16)
        # where it fits, P of the next step is kept too: two_p_buffers of tile.cuh
        others = OTHER_REGISTERS + instance.width // 16
        room = CONSUMER_REGISTERS[instance.tile.warps] - others
        roomy = (
            instance.tile.overlap != "none"
            and not {"alibi", "bias"} & {*instance.features}
            and (output.value + scores.value + 2 * probabilities.value <= room)
        )
        steps = number(2 if roomy else 1, "steps")
        return (
            Line("O accumulator", output),
            Line("S, then P", scores),
            Line("P rounded", steps * probabilities),
            Line("m and l", rows / 4, "of 2 of a warp's rows"),
        )

    def params_of(self, instance: Instance) -> str:
        """Return the C++ name of an instance's parameter, whose problem has the variant."""
        if not instance.features:
            return self.params
        return f"prefill_wgmma::ParamsWith<{cuda_kernel.cpp_variant(instance)}>"

    def order(self, instance: Instance) -> str:
        """Return the tile's Overlap, which stands in the place of an order of keys."""
        return f"{instance.kernel}::Overlap::{OVERLAPS[instance.tile.overlap]}"


KERNEL = PrefillWgmma()

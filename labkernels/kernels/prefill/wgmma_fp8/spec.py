"""prefill_wgmma_fp8: prefill_wgmma with Q, K, V and P in e4m3; two warps transpose V."""

from dataclasses import replace
from types import MappingProxyType

from labkernels.budget.ledger import Line
from labkernels.budget.quantity import number, symbol
from labkernels.budget.registers import fragment
from labkernels.kernels import cuda_kernel
from labkernels.kernels.kernel import Instance, Shape
from labkernels.kernels.packed_gqa.tile import PrefillTile
from labkernels.kernels.prefill.kernel import TmaPrefill
from labkernels.kernels.prefill.wgmma.spec import (
    KEY_BLOCKS_BYTES,
    NUMBERS,
    OVERLAPS,
    TILE_BYTES,
    TILE_STAGES,
    WARPGROUP_ROWS,
    tile_of,
)
from labkernels.policy import NumericPolicy

# registers per thread; the producers have the others, and one that transposes uses 40 or more
CONSUMER_REGISTERS = {"promoted": 232, "tensor_core": 224}
WIDE_P = "fp16"  # P in 16 bits: V becomes fp16, which has all its values
# The first is the default: sums in the tensor cores lose, step by step, what their 14 bits cut.
WAYS = (("input", "promoted"), ("input", "tensor_core"), (WIDE_P, "tensor_core"))
ATOM_KEYS = 128  # keys of an atom of the transposed V
Q_STAGES = 2
# rows, keys, warps, stages, overlap; the first is preferred
SHAPES = (
    (128, 192, 12, 2, "within"),
    (128, 192, 12, 2, "between"),
    (128, 160, 12, 2, "between"),
    (128, 128, 12, 2, "within"),
    (128, 128, 12, 4, "between"),
    (128, 128, 12, 2, "between"),
    (128, 128, 12, 2, "none"),
)
PROMOTED_KEYS = 128  # the most keys of a step whose products have registers of their own


class PrefillWgmmaFp8(TmaPrefill):
    """The warps of prefill_wgmma, of which two transpose V; dtype is the output's."""

    operation = "prefill_fp8"
    name = "prefill_wgmma_fp8"
    idea = "Both products in 8 bits: P becomes e4m3 in place, and two warps transpose V for wgmma."
    parent = None
    head_dims = (128,)
    padded_dims = ()
    layouts = ("ragged",)
    policies = tuple(
        NumericPolicy(p=p, accumulate=accumulate, out=out)
        for out in ("input", "fp32")
        for p, accumulate in WAYS
    )
    params = "prefill_wgmma_fp8::Params"
    numbers = MappingProxyType(NUMBERS)

    def thread_registers(self, instance: Instance) -> int:
        """Return the registers of a consumer's thread, after the producers gave up some."""
        return CONSUMER_REGISTERS[instance.policy.accumulate]

    def tiles(self, shape: Shape, policy: NumericPolicy) -> tuple[PrefillTile, ...]:
        """Return the tiles that fit the registers."""
        tiles = tuple(tile_of(*numbers) for numbers in SHAPES)
        if policy.p == WIDE_P:
            return tuple(tile for tile in tiles if (tile.keys, tile.stages) == (128, 2))
        if policy.accumulate != "promoted":
            return tiles
        return tuple(t for t in tiles if t.keys <= PROMOTED_KEYS and t.overlap != "none")

    def smem_lines(self, instance: Instance) -> tuple[Line, ...]:
        """Return the shared memory of a block, in bytes."""
        of, code = cuda_kernel.sizes(instance), number(1, "B")
        keys, narrow = instance.tile.keys, instance.policy.p == "input"
        if narrow:
            keys = -(-keys // ATOM_KEYS) * ATOM_KEYS
        of_v = symbol("T_V", keys, "keys of a step, in whole atoms", "keys")
        width = code if narrow else of.width
        rings = 2 * of.stages + Q_STAGES + TILE_STAGES
        scheduled = TILE_BYTES + of.rows / WARPGROUP_ROWS * KEY_BLOCKS_BYTES
        lines = (
            Line("Q", number(Q_STAGES, "stages") * of.rows * of.dim * code),
            Line("K stages", of.stages * of.keys * of.dim * code),
            Line("V transposed" if narrow else "V widened", of.stages * of_v * of.dim_v * width),
            Line("barriers", (2 * rings + 2) * number(8, "B"), "full and empty"),
            Line("work tiles", TILE_STAGES * scheduled * number(1, "B")),
            Line("is_last_split", number(4, "B")),
        )
        rest = -sum(line.amount for line in lines) % self.smem_alignment
        return (
            *lines,
            Line("up to V", number(rest, "B"), "V as it comes begins a swizzle"),
            Line("V as it comes", of.stages * of.keys * of.dim_v * code),
            Line("barriers of V", 2 * of.stages * number(8, "B"), "full and empty"),
        )

    def register_lines(self, instance: Instance) -> tuple[Line, ...]:
        """Return the fragments and addresses of a consumer's thread, in registers."""
        of, rows = cuda_kernel.sizes(instance), number(WARPGROUP_ROWS // 4, "rows")
        output = fragment(rows, of.dim_v)
        promoted = instance.policy.accumulate == "promoted"
        narrow = instance.policy.p == "input"
        return (
            Line("O accumulator", output),
            *((Line("products of a step", output),) if promoted else ()),
            Line("S, then P", fragment(rows, of.keys)),
            Line("P rounded", fragment(rows, of.keys, bits=8 if narrow else 16)),
            Line("m and l", rows / 4, "of 2 of a warp's rows"),
        )

    def template(self, instance: Instance) -> str:
        """Return the C++ name of an instance; its order is an Overlap, and Paged is left out."""
        dims = (instance.head_dim, instance.head_dim_v)
        overlap = f"prefill_wgmma::Overlap::{OVERLAPS[instance.tile.overlap]}"
        narrow = instance.policy.p == "input"
        of_p = "lab::e4m3x2" if narrow else cuda_kernel.cpp_type(instance.policy.p)
        numbers = (*dims, *instance.tile.numbers, overlap, of_p)
        of = replace(instance, policy=replace(instance.policy, p="input"))
        return cuda_kernel.cpp_function(of, "prefill", *numbers)


KERNEL = PrefillWgmmaFp8()

"""The interface of a decode kernel, its tile, and what the CUDA kernels share."""

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any, Protocol

from labkernels.budget.compiler import Asked
from labkernels.budget.ledger import Line
from labkernels.budget.quantity import Quantity, number
from labkernels.budget.registers import fragment
from labkernels.kernels.cuda_kernel import (
    OVERLAY,
    CudaKernel,
    cpp_function,
    query_line,
    sizes,
    states_lines,
    step_features,
)
from labkernels.kernels.kernel import PADDED_DIMS, Instance, Kernel, Shape
from labkernels.kernels.tile import Tile, WarpTile
from labkernels.kernels.workload import KV_DTYPES
from labkernels.variant import UNMASKED

ADDRESSES = Line(
    "addresses",
    number(2) * 3 + number(2) * 2 + 2 + 6,
    "3 pointers, 2 strides, 1 row offset (64 bits each), page size and 5 loop counters",
)


class DecodeTile(WarpTile):
    """The tile of a decode kernel."""


def narrow_tiles(blocks_per_sm: int) -> tuple[DecodeTile, DecodeTile]:
    """Return the tiles for a cache of 8 bits: three of its stages take less than two of 16 bits."""
    return DecodeTile(4, 16, 3, blocks_per_sm), DecodeTile(4, 16, 2, blocks_per_sm)


class DecodeKernel(Kernel, Protocol):
    """A kernel of one query token per request."""

    operation: str = "decode"
    padded_dims: tuple[int, ...] = PADDED_DIMS

    def rows(self, group: int) -> int:
        """Return the query rows of a block, for `group` query heads per KV head."""

    def rows_of(self, shape: Shape, tile: Tile) -> int:
        """Return the query rows of a block."""
        return self.rows(shape.group)


class CudaDecodeKernel(DecodeKernel, CudaKernel, Protocol):
    """A decode kernel in CUDA C++."""

    features: tuple[str, ...] = (*UNMASKED, "bias")
    kv_dtypes: tuple[str | None, ...] = (None, *KV_DTYPES)
    params: str = "lab::DecodeParams"
    launch: str = "..cuda"
    addresses: tuple[Line, ...] = (ADDRESSES,)

    def space(self, head_dim: int) -> Iterator[DecodeTile]:
        """Yield every tile of up to 8 warps, and of up to the 32 keys that a warp looks up."""
        for numbers in product((2, 4, 8), (16, 32), (2, 3, 4), (1, 2, 3, 4)):
            yield DecodeTile(*numbers)

    def rows_argument(self, instance: Instance) -> tuple[int, ...]:
        """Return the template argument for the rows, if instances differ in it."""
        return ()

    def template(self, instance: Instance) -> str:
        """Return `kernel::decode<kernel::KernelTraits<T, head_dim, *rows, tile...>, Policy>`."""
        numbers = (*self.rows_argument(instance), *instance.tile.numbers)
        return cpp_function(instance, "decode", instance.width, *numbers)


class TensorCoreDecode(CudaDecodeKernel, Protocol):
    """A decode kernel on tensor cores, which keeps Q beside its stages."""

    block_dtypes: tuple[str, ...] = ("bf16",)  # P times a scale leaves the range of fp16
    sum_bits: tuple[int, ...]

    def smem_lines(self, instance: Instance) -> tuple[Line, ...]:
        """Return the shared memory of a block, in bytes."""
        return (query_line(instance), stage_line(instance), *states_lines(instance))

    def asked(self, instance: Instance, arch: str) -> Asked:
        """Return the features of a warp that loads its own keys."""
        features = step_features(instance, keys=sizes(instance).keys, warps=1)
        return Asked(features, merges_splits=True)

    def summation_order(self, instance: Instance) -> Mapping[str, Any] | None:
        """Return how warps share steps, and which bits of a key choose the lane that sums it."""
        promoted = instance.policy.accumulate == "promoted"
        turns = {"warps": instance.tile.warps, "keys": instance.tile.keys}
        return turns | {"sum_bits": self.sum_bits, "promoted": promoted}


def stage_line(instance: Instance) -> Line:
    """Return the bytes of the K and V stages of all warps."""
    of = sizes(instance)
    return Line(
        "K and V stages",
        of.warps * (2 * of.stages - 1) * of.keys * of.dim * of.kv_width,
        note="each warp's own: d of K, one less of V",
        shares=OVERLAY,
        phase="loop",
    )


def rounded_p_line(instance: Instance, *, rows: Quantity | int) -> Line:
    """Return the registers of the rounded P of 16 keys, an operand of the tensor cores."""
    parts = instance.policy.p_parts
    each = fragment(16, rows, bits=16)
    return Line("P rounded", parts * each if parts > 1 else each, "hi and lo" if parts > 1 else "")


def code_lines(instance: Instance) -> tuple[Line, ...]:
    """Return the registers of the codes of 32 channels, which come together, in 8 bits."""
    if instance.kv_dtype is None:
        return ()
    return (Line("codes", fragment(sizes(instance).keys, 32, bits=8), "16 channels wait in them"),)


def scale_lines(instance: Instance) -> tuple[Line, ...]:
    """Return the registers of the scales of a lane's keys, if blocks of keys have scales."""
    if not instance.of_blocks:
        return ()
    pointers = number(2) * 2 + 2
    return (
        Line("scales", 2 * sizes(instance).stages, "of K and of V, of each window in flight"),
        Line("where scales lie", pointers, "2 pointers and an offset, of 64 bits each"),
    )


def chain_lines(instance: Instance) -> tuple[Line, ...]:
    """Return registers of the sum over 16 keys that fp32 adds to O, if the policy promotes sums."""
    if instance.policy.accumulate != "promoted":
        return ()
    return (Line("sum of 16 keys", fragment(16, 8)),)

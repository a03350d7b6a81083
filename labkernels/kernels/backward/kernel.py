"""The interface of a backward kernel, its tile, and what the CUDA kernels share."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from labkernels.budget.ledger import Line
from labkernels.budget.quantity import Quantity, number, quantity
from labkernels.budget.registers import WARP_THREADS, fragment
from labkernels.cuda.compiler.specialization import Specialization
from labkernels.kernels.cuda_kernel import (
    FP32,
    CudaKernel,
    cpp_function,
    cpp_type,
    sizes,
)
from labkernels.kernels.kernel import PADDED_DIMS, Instance, Kernel
from labkernels.kernels.tile import RowTile
from labkernels.policy import EXP2, TENSOR_CORES, NumericPolicy, policies
from labkernels.variant import UNMASKED

ADDRESSES = Line(
    "addresses",
    number(3) * 2 + number(2) * 2 + 5,
    "3 pointers and 2 strides of 64 bits, first key, head and tile ahead, 2 loop counters",
)
PARAMS = "lab::BackwardParams"
ROW_HEADER, ROW_THREADS = "backward/rows.cuh", 256
ROW_PADDING = 128  # each request begins at a multiple of this many rows in the workspace
NUMBERS = {"ROW_PADDING": ROW_PADDING}
EVERY_EXP2 = policies(TENSOR_CORES, denominators=("unrounded",), exp2s=EXP2)
POLICIES = tuple(policy for policy in EVERY_EXP2 if policy.out == "input")


@dataclass(frozen=True)
class BackwardTile(RowTile):
    """A tile of query rows and keys.

    dq: how dq is summed over the keys; "atomic": fp32 additions in the order in which blocks
    arrive, "ordered": always in the same order. rung: of the ladder below backward_wgmma, if any.
    """

    dq: str = "atomic"
    rung: str = ""

    @property
    def label(self) -> str:
        """As in data/ and on the command line: "64x128x8x2x1", then "-ordered" or a rung."""
        words = "" if self.dq == "atomic" else f"-{self.dq}"
        return super().label + words + (f"-{self.rung}" if self.rung else "")


class BackwardKernel(Kernel, Protocol):
    """A kernel of the gradients of a prefill."""

    operation: str = "backward"
    head_dims: tuple[int, ...] = (64, 128, 192, 256)
    padded_dims: tuple[int, ...] = PADDED_DIMS
    layouts: tuple[str, ...] = ("ragged",)


class CudaBackwardKernel(BackwardKernel, CudaKernel, Protocol):
    """A backward kernel in CUDA C++; one kernel before it prepares rows, one after it rounds dq.

    dq_by_rows: whether an ordered dq has a separate kernel, in which blocks keep rows and go
    through the keys.
    """

    params: str = PARAMS
    launch: str = "..cuda"
    addresses: tuple[Line, ...] = (ADDRESSES,)
    numbers: Mapping[str, int] = MappingProxyType(NUMBERS)
    features: tuple[str, ...] = UNMASKED
    policies: tuple[NumericPolicy, ...] = POLICIES
    dq_by_rows: bool = False

    def template(self, instance: Instance) -> str:
        """Return the C++ name of the instance."""
        return cpp_instance(instance)

    def specializations(self, instance: Instance) -> tuple[Specialization, ...]:
        """Return the kernels to compile: for dK and dV, before and after it, and of sinks."""
        keeps_rows = self.dq_by_rows and instance.tile.dq == "ordered"
        cleared = 0 if keeps_rows else instance.width
        before = self._row_kernel(instance, "backward_prepare", instance.width_v, cleared)
        if keeps_rows:
            after = Specialization(
                header=self.header,
                instance=cpp_instance(instance, "ordered_dq"),
                params=CudaKernel.params_of(self, instance),
                threads=instance.tile.threads,
                smem_bytes=ordered_dq_bytes(instance),
                include_dirs=self.include_dirs,
                numbers=tuple((NUMBERS | self.channels(instance)).items()),
            )
        else:
            after = self._row_kernel(instance, "backward_convert", instance.width)
        return (self.specialization(instance), before, after, *self._of_sinks(instance))

    def _of_sinks(self, instance: Instance) -> tuple[Specialization, ...]:
        if "sinks" not in instance.features:
            return ()
        warps, numbers = ROW_THREADS // WARP_THREADS, tuple(NUMBERS.items())
        how = ("lab::SinkParams", ROW_THREADS, warps * FP32.value, self.include_dirs, numbers)
        return (Specialization(ROW_HEADER, f"lab::backward_sinks<{warps}>", *how),)

    def _row_kernel(self, instance: Instance, function: str, *widths: int) -> Specialization:
        arguments = ", ".join((cpp_type(instance.dtype), *map(str, widths)))
        name = f"lab::{function}<{arguments}>"
        numbers = tuple((NUMBERS | self.channels(instance)).items())
        return Specialization(ROW_HEADER, name, PARAMS, ROW_THREADS, 0, self.include_dirs, numbers)


def cpp_instance(instance: Instance, function: str = "backward") -> str:
    """Return `kernel::function<kernel::KernelTraits<T, D, Dv, q_rows, ..., Ordered>, Policy>`."""
    tile = instance.tile
    widths = (instance.width, instance.width_v)
    return cpp_function(instance, function, *widths, *tile.numbers, tile.dq == "ordered")


def pair_line(instance: Instance, name: str, rows: Quantity) -> Line:
    """Return the bytes of two tiles of these rows: with the channels of q and K, and those of V."""
    of = sizes(instance)
    if instance.width == instance.width_v:
        return Line(name, 2 * rows * of.dim * of.width)
    return Line(name, rows * (of.dim + of.dim_v) * of.width)


def sums_line(instance: Instance, warps: Quantity) -> Line:
    """Return the registers of dK and dV, which a block's warps share."""
    of = sizes(instance)
    sums, sums_v = (fragment(of.keys, dim, warps=warps) for dim in (of.dim, of.dim_v))
    alike = instance.width == instance.width_v
    return Line("dK and dV", 2 * sums if alike else sums + sums_v)


def score_line(instance: Instance, name: str, tiles: int) -> Line:
    """Return bytes of P and dS, or one of them, which pass through shared memory."""
    of = sizes(instance)
    # rows are padded to a multiple of 128 bytes
    keys = of.keys if instance.tile.keys >= 64 else number(64, "keys")
    return Line(name, tiles * of.rows * keys * of.width)


def row_line(instance: Instance, stages: Quantity | int) -> Line:
    """Return the bytes of lse2 and delta of each row."""
    return Line("lse2 and delta", 2 * quantity(stages) * sizes(instance).rows * FP32)


def ordered_dq_bytes(instance: Instance) -> int:
    """Return the shared memory of a block that keeps rows and goes through keys."""
    of = sizes(instance)
    lines = (
        pair_line(instance, "Q and dO", of.rows),
        pair_line(instance, "K and V stages", of.stages * of.keys),
        score_line(instance, "dS", 1),
        row_line(instance, 1),
    )
    return sum(line.amount for line in lines)

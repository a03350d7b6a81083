"""The base of the CUDA kernels, and what their ledgers and C++ names share."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from labkernels import formats
from labkernels.budget.compiler import Asked, Prediction, operands, predict
from labkernels.budget.ledger import Ledger, Line
from labkernels.budget.occupancy import occupancy, registers_allowed
from labkernels.budget.quantity import Quantity, ceil_div, number, symbol
from labkernels.budget.registers import fragment, lanes_of
from labkernels.budget.tile_model import StepWork
from labkernels.cuda.compiler.specialization import STATE_PADDING, Specialization
from labkernels.hardware import Gpu
from labkernels.kernels.kernel import Instance, Kernel
from labkernels.variant import FEATURES

OVERLAY = "stages or States"
FP32 = number(4, "B")
SWIZZLE_ALIGNMENT = 1024  # bytes; the pattern of the 128-byte swizzle is eight lines of 128 bytes
MASK_REGISTERS, MASK_NOTE = 4, "a row's bits of a step, and where they begin"
_KERNELS = Path(__file__).parent


class CudaKernel(Kernel, Protocol):
    """A kernel in CUDA C++, with ledgers of an instance's shared memory and registers.

    params: the C++ name of its one parameter. numbers: constants, each of which is a macro of the
    source: LAB_ and the name. addresses: registers by which each kernel of the operation finds its
    rows and keys. smem_alignment: bytes to a multiple of which shared memory is rounded up.
    """

    language: str = "cuda"
    params: str
    numbers: Mapping[str, int] = MappingProxyType({})
    addresses: tuple[Line, ...] = ()
    smem_alignment: int = 1

    def smem_lines(self, instance: Instance) -> tuple[Line, ...]:
        """Return the lines of a block's shared memory, without the padding at its end."""

    def register_lines(self, instance: Instance) -> tuple[Line, ...]:
        """Return what a thread's algorithm keeps in registers, without the addresses."""

    def smem(self, instance: Instance) -> Ledger:
        """Return the shared memory of a block, in bytes."""
        lines, alignment = self.smem_lines(instance), self.smem_alignment
        rest = -sum(line.amount for line in lines) % alignment
        if rest:
            meaning = f"B up to a multiple of {alignment:,} B"
            lines = (*lines, Line("padding", symbol("p", rest, meaning)))
        title = f"{instance.kernel} {instance.tile.label}: shared memory per block"
        return Ledger(title, "bytes", lines)

    def registers(self, instance: Instance) -> Ledger:
        """Return the registers per thread that the algorithm needs, without those of ptxas."""
        title = f"{instance.kernel} {instance.tile.label}: registers per thread"
        lines = self.register_lines(instance)
        if {"alibi", "bias"} & {*instance.features}:
            of_rows = [line.quantity for line in lines if line.name == "m and l"]
            if of_rows:
                lines += (Line("slopes", of_rows[0], "a slope and a place of each row"),)
            else:  # all rows of a step are of one head
                lines += (Line("slope", number(1)),)
        if "mask" in instance.features:
            lines += (Line("mask", number(MASK_REGISTERS), MASK_NOTE),)
        return Ledger(title, "registers", (*lines, *self.addresses))

    def asked(self, instance: Instance, arch: str) -> Asked:
        """Return the features of main loop and end that the compiler's habits depend on."""
        return Asked()

    def predicted_registers(self, instance: Instance, gpu: Gpu) -> Prediction:
        """Return the registers that ptxas should give a thread, by ledger and habits."""
        tile = instance.tile
        return predict(
            self.registers(instance),
            self.asked(instance, gpu.arch),
            arch=gpu.arch,
            limit=registers_allowed(gpu, threads=tile.threads, blocks_per_sm=tile.blocks_per_sm),
            thread_limit=self.thread_registers(instance),
        )

    def thread_registers(self, instance: Instance) -> int | None:
        """Return a computing thread's registers after setmaxnreg; None if no warp trades any."""
        return None

    def template(self, instance: Instance) -> str:
        """Return the C++ name of the instance."""

    def params_of(self, instance: Instance) -> str:
        """Return the C++ name of an instance's parameter."""
        params = f"lab::WithVariant<{self.params}>" if instance.features else self.params
        return with_scales(params, instance)

    @property
    def header(self) -> str:
        """The include path of the CUDA source."""
        return f"{self.folder.parent.name}/{self.folder.name}/kernel.cuh"

    @property
    def include_dirs(self) -> tuple[Path, ...]:
        """Folders searched before the lab's own: the overlay, and a folder outside the lab."""
        root = self.folder.parent.parent
        return tuple(x for x in (self.overlay, root) if x is not None and x != _KERNELS)

    def fits(self, instance: Instance, gpu: Gpu) -> bool:
        """Return whether a block's shared memory fits a GPU."""
        return self.smem(instance).total <= gpu.smem_per_block_max_bytes

    def specializations(self, instance: Instance) -> tuple[Specialization, ...]:
        """Return the kernel's own specialization, the only one that most operations compile."""
        return (self.specialization(instance),)

    def specialization(self, instance: Instance) -> Specialization:
        """Return what is compiled from kernel.cuh for an instance."""
        registers = self.thread_registers(instance)
        traded = {} if registers is None else {"CONSUMER_REGISTERS": registers}
        traded |= self.channels(instance)
        return Specialization(
            header=self.header,
            instance=self.template(instance),
            params=self.params_of(instance),
            threads=instance.tile.threads,
            smem_bytes=self.smem(instance).total,
            include_dirs=self.include_dirs,
            numbers=tuple((traded | dict(self.numbers)).items()),
        )

    def channels(self, instance: Instance) -> dict[str, int]:
        """Return the channels of a head as a constant of the source, if its tiles are wider."""
        head_dim = instance.head_dim
        return {"CHANNELS": head_dim} if head_dim in self.padded_dims else {}

    def blocks_per_sm(self, instance: Instance, gpu: Gpu) -> int:
        """Return the blocks per SM that shared memory, threads and the tile's registers allow."""
        tile, smem_bytes = instance.tile, self.smem(instance).total
        registers = registers_allowed(gpu, threads=tile.threads, blocks_per_sm=tile.blocks_per_sm)
        held = occupancy(gpu, threads=tile.threads, registers=registers, smem_bytes=smem_bytes)
        return held.blocks_per_sm

    def step_work(self, instance: Instance) -> StepWork | None:
        """Return the work that a step puts on an SM; None if no model gives the tile's time."""
        return None


@dataclass(frozen=True)
class Sizes:
    """The symbols of an instance's ledgers, as book/notation.md has them.

    rows and keys: of a block's step (in decode, of a warp's step); dim, dim_v: channels of K and of
    V in a tile; width: bytes per element, kv_width: those of an element of the cache.
    """

    rows: Quantity
    keys: Quantity
    warps: Quantity
    stages: Quantity
    dim: Quantity
    dim_v: Quantity
    width: Quantity
    kv_width: Quantity


def sizes(instance: Instance) -> Sizes:
    """Return the symbols with the values of an instance."""
    tile = instance.tile
    width = symbol("b", formats.named(instance.dtype).bytes, "bytes of an element", "B")
    dim = symbol("D", instance.width, "channels of Q and K", "channels")
    return Sizes(
        rows=symbol("R", instance.rows, "query rows", "rows"),
        keys=symbol("T", tile.keys, "keys of a step", "keys"),
        warps=symbol("W", tile.warps, "warps of a block", "warps"),
        stages=symbol("d", tile.stages, "stages: the depth of the pipeline", "stages"),
        dim=dim,
        dim_v=dim
        if instance.width == instance.width_v
        else symbol("D_v", instance.width_v, "channels of V and O", "channels"),
        width=width,
        kv_width=width
        if instance.kv_dtype is None
        else symbol("b_kv", formats.named(instance.kv_dtype).bytes, "bytes of a code", "B"),
    )


def query_line(instance: Instance) -> Line:
    """Return the bytes of the rows of Q, which stay in shared memory for the whole kernel."""
    of = sizes(instance)
    return Line("Q", of.rows * of.dim * of.width)


def states_lines(instance: Instance) -> tuple[Line, ...]:
    """Return the bytes of the warps' States, which replace the stages at the end of the kernel."""
    of = sizes(instance)
    return (
        Line(
            "States: o",
            of.warps * of.rows * (of.dim_v + STATE_PADDING) * FP32,
            note="padded against bank conflicts",
            shares=OVERLAY,
            phase="merge",
        ),
        Line(
            "States: m and l",
            2 * of.warps * of.rows * FP32,
            shares=OVERLAY,
            phase="merge",
        ),
    )


def step_features(
    instance: Instance, *, keys: Quantity | int, warps: Quantity | int
) -> dict[str, Quantity]:
    """Return the features of a loop of mma.sync products with operands in shared memory.

    keys: keys of K or V that a warp reads per step, for "loaded ahead". warps: warps that share the
    copies of a step's K.
    """
    of = sizes(instance)
    return {
        "copies": ceil_div(of.keys * of.dim * of.kv_width, number(16, "B") * lanes_of(warps)),
        "loaded ahead": operands(fragment(keys, of.dim, bits=16)),
    }


def with_scales(params: str, instance: Instance) -> str:
    """Return the C++ name of a parameter that has the scales of an instance's cache, if any."""
    of = "BlockScales" if instance.of_blocks else "Scales"
    return f"lab::With{of}<{params}>" if instance.kv_dtype else params


def cpp_type(dtype: str) -> str:
    """Return the lab's C++ type of a dtype."""
    return {"fp32": "float", "fp16": "lab::f16"}.get(dtype, f"lab::{dtype}")


def cpp_policy(instance: Instance) -> str:
    """Return the lab::Policy of an instance."""
    policy = instance.policy
    return (
        f"lab::Policy<{cpp_type(policy.out_format(instance.dtype))}, lab::Exp2::{policy.exp2},"
        f" lab::Denominator::{policy.denominator}, lab::Probability::{policy.p},"
        f" lab::Accumulate::{policy.accumulate}>"
    )


def cpp_variant(instance: Instance) -> str:
    """Return the lab::AttentionVariant of an instance."""
    switches = (str(name in instance.features).lower() for name in FEATURES)
    return f"lab::AttentionVariant<{', '.join(switches)}>"


def cpp_function(instance: Instance, function: str, *arguments: int | str | bool) -> str:
    """Return `kernel::function<kernel::KernelTraits<T, *arguments>, Policy>`."""
    words = [str(x).lower() if isinstance(x, bool) else str(x) for x in arguments]
    if instance.features or instance.kv_dtype:
        words.append(cpp_variant(instance))
    words += [cpp_type(instance.kv_dtype)] if instance.kv_dtype else []
    words += ["true"] if instance.of_blocks else []
    tile, name = ", ".join([cpp_type(instance.dtype), *words]), instance.kernel
    return f"{name}::{function}<{name}::KernelTraits<{tile}>, {cpp_policy(instance)}>"

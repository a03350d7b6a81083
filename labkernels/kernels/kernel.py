"""What a kernel says of itself: its facts, and its answers about a shape or an instance."""

import copy
import importlib
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Protocol, Self, runtime_checkable

from labkernels.budget.compiler import Asked, Prediction, predict
from labkernels.budget.ledger import Ledger
from labkernels.budget.occupancy import occupancy, registers_allowed
from labkernels.budget.tile_model import StepWork
from labkernels.cuda.compiler.specialization import Specialization
from labkernels.hardware import Gpu
from labkernels.policy import EAGER, FLOAT64, NumericPolicy
from labkernels.variant import FULL, AttentionVariant

MANY_ROWS = 2**20  # of a long prefill: the tile that is then preferred is the widest
# DeepSeek: 64 channels of Q and K carry positions; of MLA's latent rows the others are V too
_HEAD_DIM_V = {192: 128, 576: 512}
_KERNELS = Path(__file__).parent


class Tile(Protocol):
    """The shape of a block's work, of an operation's own making; its label is its name in data/."""

    blocks_per_sm: int

    @property
    def label(self) -> str:
        """As in data/ and on the command line."""

    @property
    def threads(self) -> int:
        """Threads per block."""


def head_dim_v(head_dim: int) -> int:
    """Channels of V and of the output, for those of Q and K."""
    return _HEAD_DIM_V.get(head_dim, head_dim)


def up_to_power_of_two(rows: int) -> int:
    """The least power of two that is no less, and 1 for none."""
    return 1 << max(0, rows - 1).bit_length()


@dataclass(frozen=True)
class Architectures:
    """The GPUs that have a kernel's instructions: those from sm_`first` on, or that one alone."""

    first: int
    alone: bool = False

    def include(self, arch: str) -> bool:
        """Whether a GPU of an architecture ("sm_90", "sm_90a") has the instructions."""
        number = int(arch.removeprefix("sm_").removesuffix("a"))
        return number == self.first if self.alone else number >= self.first

    def __str__(self) -> str:
        return f"sm_{self.first}a" if self.alone else f"sm_{self.first} or newer"


ANY_GPU, SINCE_AMPERE, HOPPER = Architectures(0), Architectures(80), Architectures(90, alone=True)


@dataclass(frozen=True)
class Shape:
    """All that a choice of kernel and tile may depend on.

    group: query heads per KV head. rows: query rows of a KV head of the longest request, up to a
    power of two. layout: how K and V lie in memory, "ragged" or "paged"; page_size 0 if ragged.
    """

    dtype: str
    head_dim: int
    head_dim_v: int
    group: int
    rows: int
    layout: str
    page_size: int = 0
    variant: AttentionVariant = FULL
    positive_strides: bool = True


@dataclass(frozen=True)
class Instance:
    """One compiled variant of a kernel: all that is fixed at compile time.

    rows: query rows of the tile, at least as many as the query heads that one decode block serves.
    overlay: a folder whose files take the place of those of the same include path, for kernels
    that are changed on purpose.
    """

    kernel: str
    dtype: str
    head_dim: int
    head_dim_v: int
    rows: int
    layout: str
    tile: Tile
    policy: NumericPolicy
    overlay: Path | None = None


@runtime_checkable
class Kernel(Protocol):
    """A kernel's own account: what it can do, its tiles, and the module that launches it.

    launch: the module whose prepare(call) makes a step, as seen from the kernel's own folder.
    overlay: as of its instances.
    """

    operation: str
    name: str
    language: str
    idea: str
    parent: str | None
    needs: Architectures
    policies: tuple[NumericPolicy, ...]
    dtypes: tuple[str, ...] = ("fp16", "bf16")
    head_dims: tuple[int, ...] = (64, 128, 256)
    layouts: tuple[str, ...] = ("paged",)
    launch: str = ".launch"
    overlay: Path | None = None

    def tiles(self, shape: Shape, policy: NumericPolicy) -> tuple[Tile, ...]:
        """The tile options, the preferred one first; one fits every GPU that the kernel needs."""

    def named_tiles(self, head_dim: int) -> tuple[Tile, ...]:
        """Tiles that are there to be read and measured: no shape has them unless one is named."""
        del head_dim
        return ()

    def refuses(self, shape: Shape) -> str | None:
        """What it cannot do of a shape: the value, and what is allowed; or None."""
        for field in ("dtype", "head_dim", "layout"):
            value, allowed = getattr(shape, field), getattr(self, f"{field}s")
            if value not in allowed:
                allowed = ", ".join(map(str, allowed))
                return f"{field} = {value}, allowed for {self.name}: {allowed}"
        if shape.head_dim_v != head_dim_v(shape.head_dim):
            allowed = f"{head_dim_v(shape.head_dim)} with head_dim {shape.head_dim}"
            return f"head_dim_v = {shape.head_dim_v}, allowed for {self.name}: {allowed}"
        return None

    def yields(self, shape: Shape) -> str | None:
        """Why another kernel is faster on a shape, or None."""
        del shape
        return None

    def summation_order(self, instance: Instance) -> Mapping[str, object] | None:
        """What of the order of its sums is the kernel's own, as numerics names it, if known."""
        del instance
        return None

    def prepare(self, call):
        """The step of a checked call."""
        return self._launcher.prepare(call)

    @cached_property
    def _launcher(self) -> ModuleType:
        return importlib.import_module(self.launch, self.package)

    @property
    def package(self) -> str:
        """The kernel's package, in whose folder its files lie."""
        return type(self).__module__.rpartition(".")[0]

    @property
    def folder(self) -> Path:
        """The kernel's folder."""
        return Path(sys.modules[type(self).__module__].__file__).parent

    def with_tile(self, tile: Tile) -> Self:
        """The same kernel, with this tile alone."""
        return self.changed(tiles=lambda shape, policy: (tile,))

    def with_overlay(self, overlay: Path) -> Self:
        """The same kernel, of whose files some are replaced by those of a folder."""
        return self.changed(overlay=overlay)

    def changed(self, **answers) -> Self:
        """The same kernel, with other facts or answers."""
        changed = copy.copy(self)
        vars(changed).update(answers)
        return changed

    def shape(
        self,
        *,
        dtype: str = "bf16",
        head_dim: int,
        group: int = 1,
        rows: int = MANY_ROWS,
        layout: str | None = None,
    ) -> Shape:
        """A shape for its ledgers: of many rows, and paged where the kernel takes pages."""
        layout = layout or ("paged" if "paged" in self.layouts else self.layouts[0])
        return Shape(dtype, head_dim, head_dim_v(head_dim), group, up_to_power_of_two(rows), layout)

    def instances(self, shape: Shape, policy: NumericPolicy | None = None) -> list[Instance]:
        """The compiled variants for a shape, one for each tile option, the preferred one first.

        Raises: ValueError naming what the kernel does not support and what is allowed.
        """
        policy = policy or self.policies[0]
        reason = self.refuses(shape)
        if reason:
            raise ValueError(reason)
        if policy not in self.policies:
            allowed = "; ".join(p.label for p in self.policies)
            raise ValueError(f"policy = {policy.label}, allowed for {self.name}: {allowed}")
        sizes = (shape.dtype, shape.head_dim, shape.head_dim_v)
        return [
            Instance(
                self.name,
                *sizes,
                self.rows_of(shape, tile),
                shape.layout,
                tile,
                policy,
                self.overlay,
            )
            for tile in self.tiles(shape, policy)
        ]

    def instance(
        self,
        shape: Shape,
        policy: NumericPolicy | None = None,
        *,
        tile: str | None = None,
        gpu: Gpu | None = None,
    ) -> Instance:
        """The variant of a named tile, or the preferred one of those that fit a GPU.

        Raises: ValueError naming what the kernel does not support and what is allowed.
        """
        options = self.instances(shape, policy)
        fitting = [option for option in options if gpu is None or self.fits(option, gpu)]
        for option in fitting:
            if tile in (None, option.tile.label):
                return option
        if tile is not None and tile not in {option.tile.label for option in options}:
            where, tile, fitting = "", repr(tile), options
        else:
            where = "" if gpu is None else f" in {gpu.smem_per_block_max_bytes:,} B of {gpu.name}"
        allowed = ", ".join(option.tile.label for option in fitting) or "none of its tiles"
        raise ValueError(
            f"tile = {tile or 'the default'}, allowed for {self.name}{where}: {allowed}"
        )

    def rows_of(self, shape: Shape, tile: Tile) -> int:
        """Query rows of a block."""
        del shape
        return tile.q_rows

    def fits(self, instance: Instance, gpu: Gpu) -> bool:
        """Whether a block's shared memory, as far as it is known, fits a GPU."""
        del instance, gpu
        return True

    def specializations(self, instance: Instance) -> tuple[Specialization, ...]:
        """What is compiled for an instance, the kernel that a plan is made for first."""
        del instance
        return ()

    def blocks_per_sm(self, instance: Instance, gpu: Gpu) -> int:
        """Blocks that an SM holds at once."""
        del gpu
        return instance.tile.blocks_per_sm


class CudaKernel(Kernel, Protocol):
    """A kernel in CUDA C++, with ledgers of what an instance takes.

    params: the C++ name of its one parameter.
    """

    language: str = "cuda"
    params: str

    def smem(self, instance: Instance) -> Ledger:
        """Shared memory of a block, in bytes."""

    def registers(self, instance: Instance) -> Ledger:
        """Registers that a thread cannot do without; predicted_registers has what ptxas adds."""

    def asked(self, instance: Instance, arch: str) -> Asked:
        """What the compiler's habits depend on, of its main loop and its end."""
        del instance, arch
        return Asked()

    def predicted_registers(self, instance: Instance, gpu: Gpu) -> Prediction:
        """What ptxas will give a thread for a GPU, by the ledger and the habits of ptxas."""
        tile = instance.tile
        return predict(
            self.registers(instance),
            self.asked(instance, gpu.arch),
            arch=gpu.arch,
            limit=registers_allowed(gpu, threads=tile.threads, blocks_per_sm=tile.blocks_per_sm),
            thread_limit=self.thread_registers(instance),
        )

    def thread_registers(self, instance: Instance) -> int | None:
        """What a thread may have where warps trade registers; None where all have alike."""
        del instance
        return None

    def template(self, instance: Instance) -> str:
        """The C++ name of the instance."""

    @property
    def header(self) -> str:
        """The CUDA source, as an #include names it."""
        return f"{self.folder.parent.name}/{self.folder.name}/kernel.cuh"

    @property
    def include_dirs(self) -> tuple[Path, ...]:
        """Where files are searched before the lab's own: the overlay, a home outside the lab."""
        root = self.folder.parent.parent
        return tuple(x for x in (self.overlay, root) if x is not None and x != _KERNELS)

    def fits(self, instance: Instance, gpu: Gpu) -> bool:
        """Whether a block's shared memory fits a GPU."""
        return self.smem(instance).total <= gpu.smem_per_block_max_bytes

    def specializations(self, instance: Instance) -> tuple[Specialization, ...]:
        """The one kernel of most operations."""
        return (self.specialization(instance),)

    def specialization(self, instance: Instance) -> Specialization:
        """What is compiled of kernel.cuh for an instance."""
        return Specialization(
            header=self.header,
            instance=self.template(instance),
            params=self.params,
            threads=instance.tile.threads,
            smem_bytes=self.smem(instance).total,
            include_dirs=self.include_dirs,
        )

    def blocks_per_sm(self, instance: Instance, gpu: Gpu) -> int:
        """Blocks that shared memory, threads and the tile's promise on registers leave on an SM."""
        tile, smem_bytes = instance.tile, self.smem(instance).total
        registers = registers_allowed(gpu, threads=tile.threads, blocks_per_sm=tile.blocks_per_sm)
        held = occupancy(gpu, threads=tile.threads, registers=registers, smem_bytes=smem_bytes)
        return held.blocks_per_sm


class TorchKernel(Kernel, Protocol):
    """What torch computes, a request at a time: float64 as the truth, 16 bits as the baseline.

    whole: the one tile, as torch chooses its own. Splits that are asked for are not made.
    """

    language: str = "torch"
    parent: str | None = None
    needs: Architectures = ANY_GPU
    policies: tuple[NumericPolicy, ...] = (FLOAT64, EAGER)
    whole: Tile

    def tiles(self, shape: Shape, policy: NumericPolicy) -> tuple[Tile, ...]:
        """The one that stands for torch's own."""
        del shape, policy
        return (self.whole,)


@runtime_checkable
class TunableKernel(CudaKernel, Protocol):
    """A kernel whose tiles can be searched."""

    def space(self, head_dim: int) -> Iterable[Tile]:
        """Every tile that the source can be compiled for, whether or not it fits."""

    def step_work(self, instance: Instance) -> StepWork:
        """What a step of a block asks of an SM."""

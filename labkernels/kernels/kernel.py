"""The base of every kernel: its facts, and its answers about a shape or an instance."""

import copy
import importlib
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, Self, runtime_checkable

from labkernels.cuda.compiler.specialization import Specialization
from labkernels.hardware import Gpu
from labkernels.kernels.tile import Tile
from labkernels.policy import EAGER, FLOAT64, NumericPolicy
from labkernels.variant import FEATURES, FULL, AttentionVariant

MANY_ROWS = 2**20  # rows of a long prefill, for which the widest tile is preferred
# In DeepSeek 64 channels of Q and K carry positions; the others of a latent row are also V.
_HEAD_DIM_V = {192: 128, 576: 512}
# Head_dims for which tiles are wider: zeros fill them on their way to shared memory.
_WIDTHS = {32: 64, 80: 128, 96: 128}
PADDED_DIMS = tuple(_WIDTHS)


def head_dim_v(head_dim: int) -> int:
    """Return the channels of V and of the output, given the channels of Q and K."""
    return _HEAD_DIM_V.get(head_dim, head_dim)


def tile_width(head_dim: int) -> int:
    """Return the channels of the tiles of a head: its own, or more, of which the last are zeros."""
    return _WIDTHS.get(head_dim, head_dim)


def up_to_power_of_two(rows: int) -> int:
    """Return the least power of two that is at least the number; 1 for 0."""
    return 1 << max(0, rows - 1).bit_length()


@dataclass(frozen=True)
class Architectures:
    """The GPUs that have a kernel's instructions: sm_`first` and newer, or only sm_`first`."""

    first: int
    alone: bool = False

    def include(self, arch: str) -> bool:
        """Return whether a GPU of an architecture ("sm_90", "sm_90a") has the instructions."""
        number = int(arch.removeprefix("sm_").removesuffix("a"))
        return number == self.first if self.alone else number >= self.first

    def __str__(self) -> str:
        return f"sm_{self.first}a" if self.alone else f"sm_{self.first} or newer"


ANY_GPU, SINCE_AMPERE, HOPPER = Architectures(0), Architectures(80), Architectures(90, alone=True)


@dataclass(frozen=True)
class Shape:
    """The facts that a choice of kernel and tile may depend on.

    group: query heads per KV head. rows: query rows per KV head of the longest request, rounded up
    to a power of two. layout: "ragged" or "paged" K and V; page_size is 0 if ragged. kv_dtype: the
    format of a cache of 8 bits; None if K and V have the dtype. rotary: of an append that rotates,
    which channels are pairs, "halves" or "neighbours", and the format of its cosines and sines.
    of_blocks: whether blocks of keys of a cache of 8 bits have scales, and not heads.
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
    kv_dtype: str | None = None
    rotary: tuple[str, str] | None = None
    of_blocks: bool = False

    @property
    def width(self) -> int:
        """The channels of the tiles of Q and K, which zeros may fill."""
        return tile_width(self.head_dim)


@dataclass(frozen=True)
class Instance:
    """One compiled variant of a kernel: everything that is fixed at compile time.

    rows: query rows of the tile, at least as many as the query heads that one decode block serves.
    features: of the attention variant, as in AttentionVariant.features. kv_dtype, rotary and
    of_blocks: as in Shape. overlay: a folder of files that replace the sources of the same include
    path, for kernels that are changed on purpose.
    """

    kernel: str
    dtype: str
    head_dim: int
    head_dim_v: int
    rows: int
    layout: str
    tile: Any  # a Tile, with the fields of its operation
    policy: NumericPolicy
    overlay: Path | None = None
    features: tuple[str, ...] = ()
    kv_dtype: str | None = None
    rotary: tuple[str, str] | None = None
    of_blocks: bool = False

    @property
    def width(self) -> int:
        """The channels of the tiles of Q and K, which zeros may fill."""
        return tile_width(self.head_dim)

    @property
    def width_v(self) -> int:
        """The channels of the tiles of V and of the output."""
        return tile_width(self.head_dim_v)


@runtime_checkable
class Kernel(Protocol):
    """A kernel: what it supports, its tiles, and the module that launches it.

    launch: the module whose prepare(call) makes a step, as seen from the kernel's own folder.
    program_in: the module whose program(call) makes the launches of a CUDA kernel.
    features: the features of attention variants that it computes. kv_dtypes: formats of caches, of
    which None is the dtype. block_dtypes: dtypes beside such a cache whose blocks of keys have
    scales. padded_dims: head_dims beside the `head_dims`, whose tiles are wider. overlay: as in
    Instance.
    """

    operation: str
    name: str
    language: str
    idea: str
    parent: str | None
    needs: Architectures
    policies: tuple[NumericPolicy, ...]
    dtypes: tuple[str, ...] = ("fp16", "bf16")
    kv_dtypes: tuple[str | None, ...] = (None,)
    block_dtypes: tuple[str, ...] = ("fp16", "bf16")
    head_dims: tuple[int, ...] = (64, 128, 256)
    padded_dims: tuple[int, ...] = ()
    layouts: tuple[str, ...] = ("paged",)
    features: tuple[str, ...] = ()
    launch: str = ".launch"
    program_in: str = "..cuda"
    overlay: Path | None = None

    def tiles(self, shape: Shape, policy: NumericPolicy) -> tuple[Any, ...]:
        """Return the tiles, the preferred one first; one fits every GPU with the instructions."""

    def named_tiles(self, head_dim: int) -> tuple[Tile, ...]:
        """Return further tiles, for reading and measuring: only a caller who names one uses it."""
        return ()

    def space(self, head_dim: int) -> Iterable[Tile]:
        """Return every tile that the source can be compiled for, fitting or not; () if unknown."""
        return ()

    def refuses(self, shape: Shape) -> str | None:
        """Return None for a shape that the kernel can serve, else the value and what is allowed."""
        for field in ("dtype", "head_dim", "layout", "kv_dtype"):
            value, allowed = getattr(shape, field), getattr(self, f"{field}s")
            allowed = sorted(allowed + self.padded_dims) if field == "head_dim" else allowed
            if value not in allowed:
                allowed = ", ".join(map(str, allowed))
                return f"{field} = {value}, allowed for {self.name}: {allowed}"
        if shape.of_blocks and shape.dtype not in self.block_dtypes:
            of, allowed = "with scales of blocks of keys", ", ".join(self.block_dtypes)
            return f"dtype = {shape.dtype} {of}, allowed for {self.name}: {allowed}"
        if (lacks := self.lacks(shape.variant)) is not None:
            return lacks
        if shape.head_dim_v != head_dim_v(shape.head_dim):
            allowed = f"{head_dim_v(shape.head_dim)} with head_dim {shape.head_dim}"
            return f"head_dim_v = {shape.head_dim_v}, allowed for {self.name}: {allowed}"
        return None

    def lacks(self, variant: AttentionVariant) -> str | None:
        """Return None for a variant that the kernel computes, else the feature that it lacks."""
        for feature in variant.features:
            if feature not in self.features:
                allowed = ", ".join(self.features) or "none"
                return f"a variant with {feature}, allowed for {self.name}: {allowed}"
        return None

    def yields(self, shape: Shape) -> str | None:
        """Return why another kernel is faster on a shape, or None."""
        return None

    def summation_order(self, instance: Instance) -> Mapping[str, Any] | None:
        """Return the order of the kernel's sums, as arguments of SummationOrder, if it is known."""
        return None

    def prepare(self, call):
        """Return the step that runs a checked call."""
        return self._launcher.prepare(call)

    def program(self, call):
        """Return the launches of a checked call, and the memory that they share."""
        return importlib.import_module(self.program_in, self.package).program(call)

    @cached_property
    def _launcher(self) -> ModuleType:
        return importlib.import_module(self.launch, self.package)

    @property
    def package(self) -> str:
        """The package of the kernel."""
        return type(self).__module__.rpartition(".")[0]

    @property
    def folder(self) -> Path:
        """The folder of the kernel."""
        return Path(sys.modules[type(self).__module__].__file__).parent

    def with_tile(self, tile: Tile) -> Self:
        """Return the same kernel with this tile as its only option."""
        return self.changed(tiles=lambda shape, policy: (tile,))

    def with_overlay(self, overlay: Path) -> Self:
        """Return the same kernel, with some sources replaced by the files of a folder."""
        return self.changed(overlay=overlay)

    def changed(self, **answers) -> Self:
        """Return the same kernel with other facts or answers."""
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
        variant: AttentionVariant = FULL,
        kv_dtype: str | None = None,
        of_blocks: bool = False,
    ) -> Shape:
        """Return a shape for the ledgers: many rows, and paged if the kernel takes pages."""
        layout = layout or ("paged" if "paged" in self.layouts else self.layouts[0])
        sizes = (dtype, head_dim, head_dim_v(head_dim), group, up_to_power_of_two(rows))
        cache = {"kv_dtype": kv_dtype, "of_blocks": of_blocks}
        return Shape(*sizes, layout, variant=variant, **cache)

    def instances(self, shape: Shape, policy: NumericPolicy | None = None) -> list[Instance]:
        """Return the compiled variants for a shape, one per tile option, the preferred one first.

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
                shape.variant.features,
                shape.kv_dtype,
                shape.rotary,
                shape.of_blocks,
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
        """Return the variant of a named tile, or the preferred variant among those that fit a GPU.

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

    def rows_of(self, shape: Shape, tile: Any) -> int:
        """Return the query rows of a block."""
        return tile.q_rows

    def fits(self, instance: Instance, gpu: Gpu) -> bool:
        """Return whether a block's shared memory fits a GPU; True if the size is not known."""
        return True

    def specializations(self, instance: Instance) -> tuple[Specialization, ...]:
        """Return what is compiled for an instance, first the kernel that a plan describes."""
        return ()

    def blocks_per_sm(self, instance: Instance, gpu: Gpu) -> int:
        """Return the blocks that an SM holds at once."""
        return instance.tile.blocks_per_sm


class TorchKernel(Kernel, Protocol):
    """Attention in torch, one request at a time: float64 is the reference, 16 bits the baseline.

    whole: the only tile, since torch chooses its own. Requested splits are ignored.
    """

    language: str = "torch"
    parent: str | None = None
    needs: Architectures = ANY_GPU
    policies: tuple[NumericPolicy, ...] = (FLOAT64, EAGER)
    features: tuple[str, ...] = FEATURES
    whole: Tile

    def tiles(self, shape: Shape, policy: NumericPolicy) -> tuple[Any, ...]:
        """Return the tile that stands for torch's choice."""
        return (self.whole,)

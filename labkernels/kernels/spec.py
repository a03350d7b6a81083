"""What a kernel says of itself, and how the kernels are found."""

import importlib
import pkgutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import ClassVar

from labkernels.budget.ledger import Ledger
from labkernels.budget.tile_model import StepWork
from labkernels.hardware import Gpu

EXP2 = ("mufu", "poly3", "poly5")  # "library": whatever torch calls
DENOMINATORS = ("unrounded", "rounded")
WALKS = ("forward", "backward")
MANY_ROWS = 2**20  # of a long prefill: the tile that is then preferred is the widest
# DeepSeek: 64 channels of Q and K carry positions; of MLA's latent rows the others are V too
_HEAD_DIM_V = {192: 128, 576: 512}


@dataclass(frozen=True)
class NumericPolicy:
    """Where a kernel rounds; each field is a compile-time switch.

    p: format of the probabilities in the second product; "input": that of Q, K and V; "input_x2":
    hi + lo, both of that format, because an mma takes P and V in one: bf16x2 or fp16x2.
    denominator: whether l sums P before or after its rounding. exp2: the special-function unit, a
    polynomial of degree 3 or 5 in FMAs, or torch's own. accumulate: what adds the products up;
    "promoted": tensor cores from zero for every 16 keys, then fp32 additions to nearest.
    Raises: ValueError naming the field, its value and what is allowed.
    """

    p: str = "input"
    denominator: str = "unrounded"
    exp2: str = "mufu"
    accumulate: str = "tensor_core"
    out: str = "input"

    def __post_init__(self) -> None:
        allowed = {
            "p": ("input", "input_x2", "fp32", "fp64"),
            "denominator": DENOMINATORS,
            "exp2": (*EXP2, "library"),
            "accumulate": ("tensor_core", "promoted", "fma", "fp64"),
            "out": ("input", "fp32", "fp64"),
        }
        for name, values in allowed.items():
            value = getattr(self, name)
            if value not in values:
                raise ValueError(f"{name} = {value!r}, allowed: {', '.join(values)}")

    @property
    def label(self) -> str:
        """The policy in one word a switch, as in data/: "p=input,denominator=unrounded,..."."""
        return ",".join(f"{field.name}={getattr(self, field.name)}" for field in fields(self))

    @property
    def p_parts(self) -> int:
        """How many numbers of 16 bits a probability is handed to the tensor cores as."""
        return 2 if self.p == "input_x2" else 1

    def p_format(self, dtype: str) -> str:
        """Return the format of P for inputs of a dtype, as numerics names it."""
        return {"input": dtype, "input_x2": f"{dtype}x2"}.get(self.p, self.p)

    def out_format(self, dtype: str) -> str:
        """Return the format of the output for inputs of a dtype."""
        return dtype if self.out == "input" else self.out


TENSOR_CORES = NumericPolicy()
CUDA_CORES = NumericPolicy(p="fp32", accumulate="fma")


@dataclass(frozen=True)
class DecodeTile:
    """The shape of a block's work: warps, keys a warp takes a step, stages, blocks on an SM.

    `blocks_per_sm` is the promise of __launch_bounds__: ptxas limits the registers to keep it.
    """

    warps: int
    keys: int
    stages: int
    blocks_per_sm: int
    legend: ClassVar[str] = "warps x keys x stages x blocks on an SM"

    @property
    def label(self) -> str:
        """As in data/ and on the command line: "4x16x2x3"."""
        return f"{self.warps}x{self.keys}x{self.stages}x{self.blocks_per_sm}"

    @property
    def threads(self) -> int:
        """Threads a block."""
        return 32 * self.warps


@dataclass(frozen=True)
class PrefillTile:
    """The shape of a block's work: query rows, keys a step, warps, stages, blocks on an SM.

    A row is one head of one token. walk: the direction in which a block goes through its keys.
    overlap: what a warpgroup of a kernel with wgmma does beside its products: "none"; its softmax
    ("within"); that, in turns with the other warpgroups ("between").
    """

    q_rows: int
    keys: int
    warps: int
    stages: int
    blocks_per_sm: int
    walk: str = "forward"
    overlap: str = ""
    legend: ClassVar[str] = "query rows x keys x warps x stages x blocks on an SM"

    @property
    def numbers(self) -> tuple[int, ...]:
        """What its label begins with, and its C++ Tile holds."""
        return (self.q_rows, self.keys, self.warps, self.stages, self.blocks_per_sm)

    @property
    def label(self) -> str:
        """As in data/ and on the command line: "128x64x8x2x1", "-backward", "-within" behind it."""
        words = [word for word in (self.walk, self.overlap) if word not in ("forward", "")]
        return "-".join(["x".join(map(str, self.numbers)), *words])

    @property
    def threads(self) -> int:
        """Threads a block."""
        return 32 * self.warps


@dataclass(frozen=True)
class BackwardTile:
    """The shape of a block's work: query rows a step, keys, warps, stages, blocks on an SM.

    dq: how dq adds up over the keys; "atomic": fp32 additions in whatever order blocks arrive,
    "ordered": always in the same order.
    """

    q_rows: int
    keys: int
    warps: int
    stages: int
    blocks_per_sm: int
    dq: str = "atomic"
    legend: ClassVar[str] = "query rows x keys x warps x stages x blocks on an SM"

    @property
    def numbers(self) -> tuple[int, ...]:
        """What its label begins with, and its C++ Tile holds."""
        return (self.q_rows, self.keys, self.warps, self.stages, self.blocks_per_sm)

    @property
    def label(self) -> str:
        """As in data/ and on the command line: "64x128x8x2x1", with "-ordered" behind it."""
        return "x".join(map(str, self.numbers)) + ("" if self.dq == "atomic" else f"-{self.dq}")

    @property
    def threads(self) -> int:
        """Threads a block."""
        return 32 * self.warps


Tile = DecodeTile | PrefillTile | BackwardTile


def head_dim_v(head_dim: int) -> int:
    """Channels of V and of the output, for those of Q and K."""
    return _HEAD_DIM_V.get(head_dim, head_dim)


@dataclass(frozen=True)
class Instance:
    """One compiled variant of a kernel: all that is fixed at compile time.

    rows: query rows of the tile, at least as many as the query heads that one decode block serves.
    kv: how K and V lie in memory, "ragged" or "paged".
    """

    kernel: str
    dtype: str
    head_dim: int
    rows: int
    tile: Tile
    policy: NumericPolicy
    kv: str = "paged"

    @property
    def head_dim_v(self) -> int:
        """Channels of V and of the output."""
        return head_dim_v(self.head_dim)


@dataclass(frozen=True)
class KernelSpec:
    """A kernel's own account: idea, what it supports, tiles, policies, ledgers.

    rows(group) gives the query rows of a decode block; the tile of a prefill block says them, and
    its rows is None. tiles(head_dim, rows, policy) lists the options, the preferred one first; one
    fits every GPU. Its rows are those to be served: of a decode block, or of the longest request.
    template(instance) names the C++ instance; a Triton or torch kernel has none. smem and registers
    give an instance's ledgers, in bytes a block and registers a thread.
    runner: the module whose prepare(request) makes a step of it; imported when first used.
    space(head_dim) lists the tiles that the source can be compiled for, whether or not they fit;
    work(instance) says what a step of one asks of an SM. A kernel with both can be tuned.
    thread_registers(instance): what a thread of the register ledger may have, where warps trade
    registers; None where all have what the tile's blocks on an SM leave them.
    from_rows: query rows below which its tile is mostly padding, so that its parent is chosen.
    only_arch: whether min_arch's own instructions ("sm_90a") are used, which no later GPU has.
    declines(q, kv): what of a prefill's tensors it cannot do, in words, or None;
    yields(kv): why another kernel is faster on its keys.
    overlay: a folder whose files take the place of those of the same include path; for kernels that
    are changed on purpose.
    """

    name: str
    family: str
    language: str
    idea: str
    parent: str | None
    folder: Path
    min_arch: int
    policies: tuple[NumericPolicy, ...]
    rows: Callable[[int], int] | None
    tiles: Callable[[int, int, NumericPolicy], tuple[Tile, ...]]
    smem: Callable[[Instance], Ledger] | None = None
    registers: Callable[[Instance], Ledger] | None = None
    template: Callable[[Instance], str] | None = None
    runner: str = "labkernels.kernels.cuda_decode"
    declines: Callable[..., str | None] = lambda q, kv: None
    yields: Callable[..., str | None] = lambda kv: None
    dtypes: tuple[str, ...] = ("fp16", "bf16")
    head_dims: tuple[int, ...] = (64, 128, 256)
    overlay: Path | None = None
    only_arch: bool = False
    from_rows: int = 1
    kv: tuple[str, ...] = ("paged",)
    space: Callable[[int], Iterable[Tile]] | None = None
    work: Callable[[Instance], StepWork] | None = None
    thread_registers: Callable[[Instance], int] | None = None

    @property
    def header(self) -> str:
        """The CUDA source, as an #include names it."""
        return f"{self.folder.name}/kernel.cuh"

    def uses_tensor_cores(self, policy: NumericPolicy) -> bool:
        """Whether the products run on tensor cores under this policy."""
        return policy.accumulate in ("tensor_core", "promoted")

    def runs_on(self, arch: str) -> bool:
        """Whether a GPU of that architecture ("sm_90") has the instructions."""
        number = int(arch.removeprefix("sm_"))
        return number == self.min_arch if self.only_arch else number >= self.min_arch

    @property
    def needs(self) -> str:
        """The architecture that it needs, in words: "sm_80 or newer", "sm_90a"."""
        return f"sm_{self.min_arch}a" if self.only_arch else f"sm_{self.min_arch} or newer"

    @property
    def usual_kv(self) -> str:
        """The layout of K and V that is meant where none is said: paged, if it takes that."""
        return "paged" if "paged" in self.kv else self.kv[0]

    def unsupported(
        self, *, dtype: str, head_dim: int, policy: NumericPolicy, kv: str | None = None
    ) -> str | None:
        """Return None if the kernel can do it, else the reason, naming value and allowed."""
        if dtype not in self.dtypes:
            return f"dtype = {dtype!r}, allowed for {self.name}: {', '.join(self.dtypes)}"
        if head_dim not in self.head_dims:
            allowed = ", ".join(map(str, self.head_dims))
            return f"head_dim = {head_dim}, allowed for {self.name}: {allowed}"
        if policy not in self.policies:
            allowed = "; ".join(p.label for p in self.policies)
            return f"policy = {policy.label}, allowed for {self.name}: {allowed}"
        if (kv or self.usual_kv) not in self.kv:
            return f"kv is {kv}, allowed for {self.name}: {', '.join(self.kv)}"
        return None

    def served_rows(self, group: int, tokens: int = MANY_ROWS) -> int:
        """Query rows to serve: of a decode block, or of a request of that many tokens."""
        return self.rows(group) if self.rows else group * tokens

    def instances(
        self, *, dtype: str, head_dim: int, rows: int, policy: NumericPolicy, kv: str = "paged"
    ) -> list[Instance]:
        """The variants, one a tile option, the preferred one first."""
        return [
            Instance(
                self.name,
                dtype,
                head_dim,
                rows if isinstance(tile, DecodeTile) else tile.q_rows,
                tile,
                policy,
                kv,
            )
            for tile in self.tiles(head_dim, rows, policy)
        ]

    def instance(
        self,
        *,
        dtype: str,
        head_dim: int,
        group: int,
        tokens: int = MANY_ROWS,
        tile: Tile | None = None,
        policy: NumericPolicy | None = None,
        kv: str | None = None,
        gpu: Gpu | None = None,
    ) -> Instance:
        """The variant for a problem; tile and policy default to the preferred ones.

        tokens: query tokens of the longest request, for a prefill. With a GPU, the preferred tile
        is the first option whose shared memory fits it.
        Raises: ValueError naming what the kernel does not support and what is allowed.
        """
        policy = policy or self.policies[0]
        kv = kv or self.usual_kv
        reason = self.unsupported(dtype=dtype, head_dim=head_dim, policy=policy, kv=kv)
        if reason:
            raise ValueError(reason)
        rows = self.served_rows(group, tokens)
        options = self.instances(dtype=dtype, head_dim=head_dim, rows=rows, policy=policy, kv=kv)
        fitting = [option for option in options if gpu is None or self.fits(option, gpu)]
        chosen = fitting[0].tile if tile is None and fitting else tile
        for option in fitting:
            if option.tile == chosen:
                return option
        allowed = ", ".join(option.tile.label for option in fitting)
        label = "the default" if chosen is None else chosen.label
        where = "" if gpu is None else f" in {gpu.smem_per_block_max_bytes:,} B of {gpu.name}"
        raise ValueError(f"tile = {label}, allowed for {self.name}{where}: {allowed}")

    def fits(self, instance: Instance, gpu: Gpu) -> bool:
        """Whether a block's shared memory, as far as the kernel has a ledger of it, fits a GPU."""
        return self.smem is None or self.smem(instance).total <= gpu.smem_per_block_max_bytes

    def tile_named(
        self, label: str, *, head_dim: int, rows: int, policy: NumericPolicy | None = None
    ) -> Tile:
        """The tile option of that label.

        Raises: ValueError naming the labels allowed.
        """
        options = {
            tile.label: tile for tile in self.tiles(head_dim, rows, policy or self.policies[0])
        }
        if label not in options:
            raise ValueError(f"tile = {label!r}, allowed for {self.name}: {', '.join(options)}")
        return options[label]


def policies(
    base: NumericPolicy, *, denominators: tuple[str, ...], exp2s: tuple[str, ...] = EXP2
) -> tuple[NumericPolicy, ...]:
    """Every policy that differs from `base` in output format, exp2 or denominator."""
    return tuple(
        NumericPolicy(base.p, denominator, exp2, base.accumulate, out)
        for out in ("input", "fp32")
        for exp2 in exp2s
        for denominator in denominators
    )


def tensor_core_policies() -> tuple[NumericPolicy, ...]:
    """Every way to round on tensor cores; the costly P and sums only with the hardware's exp2."""
    costly = (("input_x2", "tensor_core"), ("input", "promoted"), ("input_x2", "promoted"))
    usual = policies(TENSOR_CORES, denominators=DENOMINATORS)
    return usual + tuple(
        policy
        for p, accumulate in costly
        for policy in policies(
            NumericPolicy(p=p, accumulate=accumulate), denominators=DENOMINATORS, exp2s=("mufu",)
        )
    )


@cache
def discover() -> dict[str, KernelSpec]:
    """Every kernel folder's SPEC by name: CUDA cores first, then by the ladder of parents."""
    package = importlib.import_module("labkernels.kernels")
    specs = {}
    for module in sorted(pkgutil.iter_modules(package.__path__), key=lambda m: m.name):
        if module.ispkg:
            spec = importlib.import_module(f"labkernels.kernels.{module.name}.spec").SPEC
            specs[spec.name] = spec
    return dict(sorted(specs.items(), key=lambda item: (_depth(specs, item[0]), item[0])))


def _depth(specs: dict[str, KernelSpec], name: str) -> int:
    parent = specs[name].parent
    return 0 if parent is None else 1 + _depth(specs, parent)

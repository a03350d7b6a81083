"""A call that has been checked, the plan made for it, and the step that runs it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, NamedTuple, Self, TypedDict, TypeVar

import torch

from labkernels.cuda import launch
from labkernels.hardware import Gpu
from labkernels.kept import Kept
from labkernels.kernels.kernel import Kernel
from labkernels.policy import NumericPolicy

if TYPE_CHECKING:
    from labkernels.kernels.choice import Choice


class Attention(NamedTuple):
    """Shapes: out [rows, q_heads, head_dim_v], lse2 [rows, q_heads] fp32, base 2.

    A row is a request of a decode, a query token of a prefill or an MLA decode. lse2 is None where
    a peer gives none.
    """

    out: torch.Tensor
    lse2: torch.Tensor | None = None


class Gradients(NamedTuple):
    """Shapes: dq [total_q, q_heads, head_dim], dk, dv [total_k, kv_heads, head_dim]."""

    dq: torch.Tensor
    dk: torch.Tensor
    dv: torch.Tensor


Outputs = TypeVar("Outputs")
Made = TypeVar("Made")
_CHECKED = Kept(256)  # calls, by their facts
_ELSEWHERE = {"triton": "Triton's interpreter", "torch": "torch on the CPU"}


class Options(TypedDict, total=False):
    """What every verb may be asked for.

    kernel: a name, or a Kernel that is not among the lab's; without it the GPU's facts choose, and
    plan.why says how. A kernel that is named runs, or is refused. tile, policy: default to the
    preferred ones. target: on a CPU, the GPU whose plan and arithmetic are followed.
    checks: each run holds a cache's lengths and pages against its pools (see `Step.check`); on a
    CPU, races and uninitialised reads are looked for, too. Without checks, a step that has not read
    them follows a page out of range: a GPU reads what lies there or ends the context, the TMA reads
    zeros.
    """

    kernel: str | Kernel | None
    tile: str | None
    policy: NumericPolicy | None
    target: str | None
    checks: bool


class AttentionOptions(Options, total=False):
    """What a verb of attention may be asked for besides.

    Units: scale multiplies q k, by default 1 / sqrt(head_dim). out, lse2: where the results go, if
    not into fresh tensors.
    """

    scale: float | None
    out: torch.Tensor | None
    lse2: torch.Tensor | None


@dataclass(frozen=True)
class Plan:
    """What was chosen for a call, and what it amounts to.

    Units: keys_per_split in keys, smem_bytes per block, waves of blocks over the whole GPU;
    registers per thread, None until the kernel has been compiled.
    batch_invariant: no choice depended on the batch, so that a request's bits are the same alone
    and among others. why: how the kernel was chosen.
    """

    kernel: str
    tile: str
    policy: str
    machine: str
    splits: int
    keys_per_split: int
    blocks: int
    blocks_per_sm: int
    waves: float
    smem_bytes: int
    registers: int | None
    launches: int
    batch_invariant: bool
    why: str


@dataclass(frozen=True, eq=False, kw_only=True)
class Call:
    """A call whose arguments are checked, and the choice made for it.

    On a CPU, `gpu` is the GPU whose plan and tensor-core arithmetic are followed, and `checks`
    turns the CPU build's checker of races and uninitialised reads on. The same call on other
    tensors of the same facts (shapes, strides, types, device, options) is `on` them; what `once`
    gives is made for the first of them alone.
    """

    choice: Choice
    gpu: Gpu
    device: torch.device
    checks: bool
    _made: dict[Callable, object] = field(default_factory=dict, repr=False)

    def on(self, **tensors: object) -> Self:
        """The same call on these tensors; dataclasses.replace takes ten times as long."""
        call = object.__new__(type(self))
        call.__dict__.update(self.__dict__, **tensors)
        return call

    def once(self, make: Callable[[Self], Made]) -> Made:
        """What a function makes of the facts of a call."""
        made = self._made.get(make)
        if made is None:
            made = self._made[make] = make(self)
        return made

    @property
    def on_gpu(self) -> bool:
        """Whether the tensors live on a GPU."""
        return self.device.type == "cuda"


def kept(facts: tuple, asked: tuple) -> Call | None:
    """The call of these facts and options, without its tensors, if one was checked and kept.

    The types of options count, since 1 and 1.0 are equal to True; what does not hash is not kept.
    """
    try:
        return _CHECKED.get((facts, asked, *map(type, asked)))
    except TypeError:
        return None


def keep(facts: tuple, asked: tuple, call: Call) -> Call:
    """Keep a call that holds no tensors, and give it."""
    _CHECKED[facts, asked, *map(type, asked)] = call
    return call


_FLAG = (bool, "True, False")
_KINDS = {
    "causal": _FLAG,
    "checks": _FLAG,
    "deterministic": _FLAG,
    "kernel": (str | Kernel | None, "the name of a kernel, a Kernel, None"),
    "policy": (NumericPolicy | None, "a NumericPolicy, None"),
    "tile": (str | None, "the label of a tile, None"),
}


def check_options(**asked: object) -> None:
    """Raise ValueError for an option of a wrong type; numbers and names are checked where used."""
    for name in asked.keys() & _KINDS.keys():
        (kind, allowed), value = _KINDS[name], asked[name]
        if not isinstance(value, kind):
            raise ValueError(f"{name} = {value!r}, allowed: {allowed}")


@dataclass(eq=False)
class Step(Generic[Outputs]):
    """A call that runs again and again on the same tensors, with nothing left to plan.

    run() enqueues it on the current stream (or finishes it, on a CPU), checks nothing, allocates
    nothing, and can be captured in a CUDA graph. What it may find changed between runs, the verb
    that made it says. outputs() are what the last run wrote; each is also an attribute of the
    step, as in step.out. A verb returns the step that it has run. Of peers: no plan; the version of
    their library; of gradients, the forward pass that they belong to, if not that of the inputs.
    clear() sets the workspace back to rest, after contents that were out of range.
    """

    run: Callable[[], None]
    outputs: Callable[[], Outputs]
    plan: Plan | None = None
    version: str = ""
    forward: Attention | None = None
    clear: Callable[[], None] = lambda: None
    check_contents: Callable[[], None] | None = None

    def check(self) -> None:
        """Raise ValueError if a run met a length or a page number out of range.

        Of a step with checks alone. On a GPU each run enqueues a small launch before its own that
        reads lengths and pages there; this looks at what these launches found until now, in memory
        of the host, so that nothing waits and nothing is read back.
        """
        if self.check_contents is None:
            raise ValueError("checks = False, or no pages, allowed: checks = True, and a cache")
        self.check_contents()

    def __reduce__(self) -> str:
        raise TypeError(
            "a Step cannot be pickled: it holds addresses and a launch of this process; pickle what"
            " it was prepared from, and prepare it again there"
        )

    def __getattr__(self, name: str) -> torch.Tensor:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.outputs(), name)


_NOT_IN_GRAPHS = ("policy", "out", "lse2", "dq", "dk", "dv")


def in_graph(
    operator: str, kind: Callable[..., Outputs], *tensors: torch.Tensor | None, **options: object
) -> Step[Outputs]:
    """The step of a verb in a graph of torch.compile: its operator, which runs when the graph does.

    The operators are those of ops.torch_ops. There is no plan, and nothing to run again.
    """
    for name in _NOT_IN_GRAPHS:
        if options.pop(name, None) is not None:
            raise ValueError(f"{name} is given in a graph of torch.compile, allowed: None")
    if "kernel" in options:
        options["kernel_name"] = options.pop("kernel")  # as the operators call it
    made = getattr(torch.ops.labkernels, operator)(*tensors, **options)
    return Step(nothing, lambda: kind(*(made or ())))


def plan_of(
    call: Call,
    *,
    blocks: int,
    keys_per_split: int,
    batch_invariant: bool,
    splits: int = 1,
    launches: int = 1,
) -> Plan:
    """The plan of a call that has been scheduled."""
    choice, gpu, on_gpu = call.choice, call.gpu, call.device.type == "cuda"
    compiled = choice.specializations[:1]
    machine = _ELSEWHERE.get(choice.kernel.language) or f"CPU build, {gpu.arch} arithmetic"
    return Plan(
        **choice.facts,
        machine=gpu.name if on_gpu else machine,
        splits=splits,
        keys_per_split=keys_per_split,
        blocks=blocks,
        waves=blocks / choice.slots,
        registers=launch.registers(compiled[0], gpu, call.device) if compiled and on_gpu else None,
        launches=launches,
        batch_invariant=batch_invariant,
    )


def partial_states(call: Call, splits: int) -> list[torch.Tensor]:
    """What the splits of a Triton kernel tell its merge: o, m and l, uninitialised.

    An unsplit launch does not touch them: any pointer serves.
    Shapes: of call.out [rows, q_heads, channels]; o is [rows, q_heads, splits, channels].
    """
    if splits == 1:
        return [call.lse2] * 3
    shape, how = (*call.out.shape[:2], splits), {"dtype": torch.float32, "device": call.device}
    return [torch.empty(x, **how) for x in ((*shape, call.out.shape[2]), shape, shape)]


def nothing() -> None:
    """What runs where there is no query token."""

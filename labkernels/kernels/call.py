"""A call that has been checked, the plan made for it, and the step that runs it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Self, TypedDict, TypeVar

import torch

from labkernels.cuda import launch
from labkernels.hardware import Gpu
from labkernels.kept import Kept
from labkernels.kernels.checks import MAX_KEYS, require_tensor, resolved
from labkernels.kernels.kernel import Kernel
from labkernels.policy import NumericPolicy
from labkernels.variant import FULL, AttentionVariant

if TYPE_CHECKING:
    from labkernels.kernels.choice import Choice


class Attention(NamedTuple):
    """Shapes: out [rows, q_heads, head_dim_v], lse2 [rows, q_heads] fp32, base 2.

    A row is a request of a decode, a query token of a prefill or an MLA decode. lse2 is None for a
    peer that does not return it.
    """

    out: torch.Tensor
    lse2: torch.Tensor | None = None


class Gradients(NamedTuple):
    """Shapes: dq [total_q, q_heads, head_dim], dk, dv [total_k, kv_heads, head_dim]."""

    dq: torch.Tensor
    dk: torch.Tensor
    dv: torch.Tensor


class SinkGradients(NamedTuple):
    """The gradients of attention with sinks. Shapes: as Gradients; dsinks [q_heads] fp32."""

    dq: torch.Tensor
    dk: torch.Tensor
    dv: torch.Tensor
    dsinks: torch.Tensor


Outputs = TypeVar("Outputs")
Made = TypeVar("Made")
ALL_KEYS = MAX_KEYS - 1  # an end of a window that hides no key: 32 bits hold a place and this
_MAX_CAP = 1e6
_CHECKED = Kept(256)  # calls that are kept, by their facts
_ELSEWHERE = {"triton": "Triton's interpreter", "torch": "torch on the CPU"}


class Options(TypedDict, total=False):
    """The options that every verb except `append` has.

    kernel: a name, or a Kernel object from outside the lab. By default shapes and the GPU choose,
    as plan.why explains. A named kernel runs or is refused; no other takes its place. tile, policy:
    the preferred ones by default; the first kernel with the policy computes it. target: on a CPU,
    the GPU whose plan and arithmetic the CPU build follows. checks: each run checks a cache's
    lengths, pages and scales (see `Step.check`); on a CPU, races and uninitialised reads
    are detected too. Without checks, a step that has not read the pages follows a page number out
    of range: a GPU then reads unrelated memory or ends the context, and the TMA reads zeros.
    """

    kernel: str | Kernel | None
    tile: str | None
    policy: NumericPolicy | None
    target: str | None
    checks: bool


class VariantOptions(TypedDict, total=False):
    """The options that say which attention is computed.

    window_left, window_right: how many keys a query sees before and after its own place, as in
    FlashAttention; query i of n, in a request of L keys, has place L - n + i. None: all of them.
    soft_cap: scores s become c tanh(s / c). alibi [q_heads] fp32: slopes; a score gets slope times
    (key - place) added, as in FlashInfer. sinks [q_heads] fp32: a logit of each query head that
    counts in the denominator alone. bias [q_heads, 2 r + 1] fp32: column r + key - place, or the
    nearest, is added to a score, as in T5 (r = 128). A tensor with torch's negative bit is copied.
    """

    window_left: int | None
    window_right: int | None
    soft_cap: float | None
    alibi: torch.Tensor | None
    sinks: torch.Tensor | None
    bias: torch.Tensor | None


VARIANT_OPTIONS = frozenset((*VariantOptions.__annotations__, "mask"))


def variant_of(
    q: torch.Tensor, options: Mapping[str, Any]
) -> tuple[AttentionVariant, Mapping[str, torch.Tensor], Any]:
    """Return the variant of queries [total_q, q_heads, ...], its tensors, and the other options.

    The variant lacks the causal mask, which is an option of its own.
    Raises: ValueError naming the option, its value and what is allowed.
    """
    for name in ("window_left", "window_right"):
        size = options.get(name)
        whole = isinstance(size, int) and not isinstance(size, bool)
        if size is not None and not (whole and 0 <= size < ALL_KEYS):
            raise ValueError(f"{name} = {size!r}, allowed: None, 0 to {ALL_KEYS - 1:,}")
    cap = options.get("soft_cap")
    number = isinstance(cap, int | float) and not isinstance(cap, bool)
    if cap is not None and not (number and 0 < cap <= _MAX_CAP):
        raise ValueError(f"soft_cap = {cap!r}, allowed: None, a positive number to {_MAX_CAP:g}")
    asked = {name: options.get(name) for name in ("alibi", "sinks", "bias")}
    tensors = {name: resolved(x) for name, x in asked.items() if x is not None}
    for name, tensor in tensors.items():
        require_tensor(name, tensor)
        shape = (q.shape[1], *((tensor.shape[-1:].numel() | 1,) if name == "bias" else ()))
        allowed = (torch.float32, shape, q.device)
        if (tensor.dtype, tuple(tensor.shape), tensor.device) != allowed:
            found = f"{name} is {tensor.dtype} {tuple(tensor.shape)} on {tensor.device}"
            raise ValueError(f"{found}, allowed: torch.float32 {shape} on {q.device}, by head")
        if not tensor.is_contiguous():
            raise ValueError(f"{name}.stride() = {tensor.stride()}, allowed: contiguous")
    if options.get("mask") is not None:
        tensors["mask"] = resolved(options["mask"])  # which only a prefill has, and checks
    ends = {name: options.get(name) for name in ("window_left", "window_right")}
    on: dict[str, Any] = {name: True for name in tensors if name != "bias"}
    on["reach"] = tensors["bias"].shape[1] // 2 if "bias" in tensors else None
    variant = AttentionVariant(**ends, soft_cap=None if cap is None else float(cap), **on)
    others = {name: x for name, x in options.items() if name not in VARIANT_OPTIONS}
    return variant, tensors, others


def asked_of(
    verb: str, q: torch.Tensor, options: Mapping[str, Any], kind: type, *, causal: bool = False
) -> tuple[Asked, Mapping[str, torch.Tensor]]:
    """Return the options of a verb, checked by name, and the tensors of its variant."""
    if not options.keys() <= kind.__annotations__.keys():
        require_options(verb, options, kind)
    if VARIANT_OPTIONS.isdisjoint(options):
        return Asked(causal, **options), {}
    variant, tensors, others = variant_of(q, options)
    return Asked(causal, **others, variant=variant), tensors


class AttentionOptions(Options, total=False):
    """The further options of the verbs of attention.

    Units: scale multiplies q k, by default 1 / sqrt(head_dim). out, lse2: tensors for the results;
    the default is fresh ones.
    """

    scale: float | None
    out: torch.Tensor | None
    lse2: torch.Tensor | None


def require_options(verb: str, options: Mapping[str, object], kind: type) -> None:
    """Raise TypeError, naming the verb that was called, for an option that `kind` lacks."""
    for name in options:
        if name not in kind.__annotations__:
            known = ", ".join(kind.__annotations__)
            raise TypeError(f"{verb}() got an unexpected option {name!r}; it has {known}")


class Asked(NamedTuple):
    """The options that a call depends on besides its tensors and lengths."""

    causal: bool = False
    kernel: str | Kernel | None = None
    tile: str | None = None
    splits: int | None = None
    keys_per_split: int | None = None
    batch_invariant: bool = False
    policy: NumericPolicy | None = None
    scale: float | None = None
    target: str | None = None
    checks: bool = False
    variant: AttentionVariant = FULL  # apart from causal


@dataclass(frozen=True)
class Plan:
    """The choices for a call, and their consequences.

    Units: keys_per_split in keys, smem_bytes per block, waves of blocks over the whole GPU;
    registers per thread, None until the kernel has been compiled.
    batch_invariant: no choice depended on the batch, so that a request has the same bits alone and
    in any batch. splits_by_length: each request's splits follow from its own length;
    keys_per_split are those of the longest that fits. why: how the kernel was chosen.
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
    splits_by_length: bool = False


@dataclass(frozen=True, eq=False, kw_only=True)
class Call:
    """A call with checked arguments, and the choice made for it.

    On a CPU, `gpu` is the GPU whose plan and tensor-core arithmetic the CPU build follows, and
    `checks` turns on its checker of races and uninitialised reads. `on` gives the same call on
    other tensors with the same facts (shapes, strides, types, device, options); what `once`
    computes is computed for the first of these calls only.
    """

    choice: Choice
    gpu: Gpu
    device: torch.device
    checks: bool
    _made: dict[Callable, Any] = field(default_factory=dict, repr=False)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...  # the tensors of each operation's call

    def on(self, **tensors: object) -> Self:
        """Return the same call on these tensors, ten times as fast as dataclasses.replace."""
        call = object.__new__(type(self))
        call.__dict__.update(self.__dict__, **tensors)
        return call

    def once(self, make: Callable[[Self], Made]) -> Made:
        """Return the result of a function of the call's facts, computed once."""
        made = self._made.get(make)
        if made is None:
            made = self._made[make] = make(self)
        return made

    @property
    def on_gpu(self) -> bool:
        """Whether the tensors live on a GPU."""
        return self.device.type == "cuda"


def kept(facts: tuple, asked: tuple) -> Call | None:
    """Return the call that was kept for these facts and options, without its tensors, or None.

    Types of options are compared, since 1 and 1.0 equal True; a call that cannot be hashed is not
    kept.
    """
    try:
        return _CHECKED.get((facts, asked, *map(type, asked)))
    except TypeError:
        return None


def keep(facts: tuple, asked: tuple, call: Call) -> Call:
    """Keep a call that holds no tensors, and return it."""
    _CHECKED[facts, asked, *map(type, asked)] = call
    return call


_FLAG = (bool, "True, False")
_KINDS = {
    "batch_invariant": _FLAG,
    "causal": _FLAG,
    "checks": _FLAG,
    "deterministic": _FLAG,
    "kernel": (str | Kernel | None, "the name of a kernel, a Kernel, None"),
    "policy": (NumericPolicy | None, "a NumericPolicy, None"),
    "tile": (str | None, "the label of a tile, None"),
}


def check_option(name: str, value: object) -> None:
    """Raise ValueError for an option of a wrong type; numbers and names are checked where used."""
    kind, allowed = _KINDS[name]
    if not isinstance(value, kind):
        raise ValueError(f"{name} = {value!r}, allowed: {allowed}")


def check_options(asked: Asked) -> None:
    """Raise ValueError for the first option of a wrong type."""
    for name in _KINDS.keys() & set(Asked._fields):
        check_option(name, getattr(asked, name))


@dataclass(eq=False)
class Step(Generic[Outputs]):
    """A planned call that can run many times on the same tensors.

    run() enqueues the call on the current stream (on a CPU, finishes it) without allocations, and
    without checks unless it was made with them. It can be captured in a CUDA graph. The verb that
    made the step documents which contents may change between runs. outputs() returns what the last
    run wrote; each output is also an attribute, as in step.out. A verb returns the step that it has
    run. A peer's step has no plan, and version names its library. forward: the forward pass of
    gradients, if it is not that of the inputs. clear() resets the workspace after contents that
    were out of range.
    """

    run: Callable[[], None]
    outputs: Callable[[], Outputs]
    plan: Plan | None = None
    version: str = ""
    forward: Attention | None = None
    clear: Callable[[], None] = lambda: None
    check_contents: Callable[[], None] | None = None

    def check(self) -> None:
        """Raise ValueError if a run met a length, a page number or a scale out of range.

        Only a step that was made with checks can find this. On a GPU each run first enqueues a
        small launch that reads them there. check() reads the findings so far from the
        host's memory, without waiting for the GPU.
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


_NOT_IN_GRAPHS = ("policy", "out", "lse2", "dq", "dk", "dv", "dsinks")


def in_graph(
    operator: str, kind: Callable[..., Outputs], *tensors: torch.Tensor | None, **options: object
) -> Step[Outputs]:
    """Return the step of a verb in a graph of torch.compile: its operator runs when the graph runs.

    ops.torch_ops defines the operators. The step has no plan and cannot run again.
    """
    for name in _NOT_IN_GRAPHS:
        if options.pop(name, None) is not None:
            raise ValueError(f"{name} is given in a graph of torch.compile, allowed: None")
    if "kernel" in options:
        options["kernel_name"] = options.pop("kernel")  # the operators' name for the option
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
    splits_by_length: bool = False,
) -> Plan:
    """Return the plan of a call that has been scheduled."""
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
        splits_by_length=splits_by_length,
    )


def partial_states(call: Call, splits: int) -> list[torch.Tensor]:
    """Allocate the partial states of the splits of a Triton kernel: o, m and l, uninitialised.

    An unsplit launch does not use them, and gets any pointer.
    Shapes: of call.out [rows, q_heads, channels]; o is [rows, q_heads, splits, channels].
    """
    if splits == 1:
        return [call.lse2] * 3
    shape, how = (*call.out.shape[:2], splits), {"dtype": torch.float32, "device": call.device}
    return [torch.empty(x, **how) for x in ((*shape, call.out.shape[2]), shape, shape)]


def nothing() -> None:
    """Do nothing, as the launch of a call without query tokens."""

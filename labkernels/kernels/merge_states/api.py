"""The verb `merge_states`: outputs over parts of the keys become the output over all keys."""

from typing import TypedDict, Unpack

import torch

from labkernels.cuda.workspace import blank
from labkernels.kernels import checks as arguments
from labkernels.kernels.call import (
    Asked,
    Attention,
    Step,
    check_options,
    keep,
    kept,
    require_options,
)
from labkernels.kernels.checks import DTYPES, MAX_KEYS, MAX_SPLITS
from labkernels.kernels.choice import Ask, choose
from labkernels.kernels.kernel import Shape
from labkernels.kernels.memory import require_apart
from labkernels.kernels.merge_states.call import MergeCall

DIMS = "[states, rows, q_heads, channels]"


class MergeOptions(TypedDict, total=False):
    """The options of a merge. out, lse2: tensors for the results; target, checks: as in Options."""

    out: torch.Tensor | None
    lse2: torch.Tensor | None
    target: str | None
    checks: bool


def merge_states(
    outs: torch.Tensor, lse2s: torch.Tensor, **options: Unpack[MergeOptions]
) -> Step[Attention]:
    """Merge outputs of the same rows over parts of the keys into the output over all keys.

    Shapes: outs [states, rows, q_heads, channels], lse2s [states, rows, q_heads] fp32, base 2; out
    [rows, q_heads, channels], lse2 [rows, q_heads]. outs may be fp32 and out fp16 or bf16; by
    default both have one dtype. A part whose lse2 is -inf has no keys, and is not read. The parts
    are added in their order, so that a row's bits depend on nothing else.
    Error: before its rounding, an output is within (states + 8) 2^-23 sum_i w_i |outs_i| of the
    exact merge with weights w_i: two roundings of a state's sums, 2^-22 of each exponential in sum
    and denominator, 2^-23 of its argument and of the division.
    Raises: ValueError naming the argument, its value and what is allowed; then nothing is written.

    >>> outs = torch.stack([torch.ones(1, 2, 64), 4 * torch.ones(1, 2, 64)])
    >>> lse2s = torch.tensor([[[3.0, 0.0]], [[2.0, float("-inf")]]])
    >>> merged = merge_states(outs, lse2s)  # weights 2/3 and 1/3; 1 and 0
    >>> merged.out[0, :, 0], merged.lse2
    (tensor([2., 1.]), tensor([[3.5850, 0.0000]]))
    """
    require_options("merge_states", options, MergeOptions)
    outs, lse2s = arguments.resolved(outs), arguments.resolved(lse2s)
    step = merge_states_step(outs, lse2s, **options)
    step.run()
    return step


def merge_states_step(
    outs: torch.Tensor, lse2s: torch.Tensor, **options: Unpack[MergeOptions]
) -> Step[Attention]:
    """Prepare a merge that can run many times; like `merge_states`.

    Raises: ValueError naming the argument, its value and what is allowed.

    >>> outs, lse2s = torch.zeros(2, 1, 2, 64), torch.zeros(2, 1, 2)
    >>> step = merge_states_step(outs, lse2s)
    >>> _ = outs[1].fill_(4)
    >>> step.run()
    >>> step.out.unique()
    tensor([2.])
    """
    arguments.require_no_gradient("merge_states", outs=outs, lse2s=lse2s)
    require_options("merge_states_step", options, MergeOptions)
    asked = Asked(target=options.get("target"), checks=options.get("checks", False))
    out, lse2 = options.get("out"), options.get("lse2")
    dtype = getattr(out, "dtype", None)
    facts = ("merge_states", dtype, *arguments.facts(outs, lse2s, names=("outs", "lse2s")))
    call = kept(facts, asked) or keep(facts, asked, _checked(outs, lse2s, dtype, asked))
    arguments.require_place("outs", outs)
    call = call.on(
        outs=outs,
        lse2s=lse2s,
        out=arguments.output("out", out, call.out),
        lse2=arguments.output("lse2", lse2, call.lse2),
    )
    require_apart({"out": call.out, "lse2": call.lse2}, {"outs": outs, "lse2s": lse2s})
    return call.choice.kernel.prepare(call)


def _checked(
    outs: torch.Tensor, lse2s: torch.Tensor, dtype: torch.dtype | None, asked: Asked
) -> MergeCall:
    check_options(asked)
    dtype = dtype or outs.dtype
    if outs.dim() != 4 or not 1 <= outs.shape[0] <= MAX_SPLITS:
        words = f"{DIMS}, 1 to {MAX_SPLITS:,} states"
        raise ValueError(f"outs.shape = {tuple(outs.shape)}, allowed: {words}")
    if outs.dtype not in DTYPES:
        raise ValueError(f"outs.dtype = {outs.dtype}, allowed: {', '.join(map(str, DTYPES))}")
    if dtype not in DTYPES or outs.dtype not in (dtype, torch.float32):
        allowed = "outs.dtype, or for fp32 outs 16 bits"
        raise ValueError(f"out.dtype = {dtype} for outs of {outs.dtype}, allowed: {allowed}")
    arguments.require_rows("outs", outs)
    arguments.require_device("lse2s", lse2s, outs.device, "outs")
    if lse2s.dtype != torch.float32:
        raise ValueError(f"lse2s.dtype = {lse2s.dtype}, allowed: torch.float32")
    _, rows, q_heads, channels = outs.shape
    if lse2s.shape != outs.shape[:3]:
        allowed = tuple(outs.shape[:3])
        raise ValueError(f"lse2s.shape = {tuple(lse2s.shape)}, allowed: {allowed}, as outs")
    if rows * q_heads * channels >= MAX_KEYS:
        words = f"fewer than {MAX_KEYS:,} elements of a state"
        raise ValueError(f"outs.shape = {tuple(outs.shape)}, allowed: {words}")
    gpu = arguments.target_gpu(outs.device, asked.target)
    shape = Shape(DTYPES[dtype], channels, channels, group=1, rows=1, layout="states")
    return MergeCall(
        choice=choose("merge_states", shape, gpu, Ask()),
        gpu=gpu,
        device=outs.device,
        checks=asked.checks,
        out=blank((rows, q_heads, channels), dtype, outs.device),
        lse2=blank((rows, q_heads), torch.float32, outs.device),
    )

"""The verbs as torch operators, for graphs of torch.compile: torch.ops.labkernels.

An operator takes the tensors of its verb's caches one by one; for fake tensors it returns shapes.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

import torch

from labkernels.kernels.append.api import append
from labkernels.kernels.backward.api import backward
from labkernels.kernels.caches.latent import LatentKV
from labkernels.kernels.caches.paged import PagedKV
from labkernels.kernels.caches.ragged import RaggedKV
from labkernels.kernels.call import Attention, Step
from labkernels.kernels.decode.api import decode
from labkernels.kernels.mla.api import mla_decode
from labkernels.kernels.prefill.api import prefill
from labkernels.ops.attention import with_rows
from labkernels.ops.with_kvcache import with_kvcache

ENDS = "Tensor cu_seqlens_q, Tensor cu_seqlens_k"
PAGES = "Tensor page_table, Tensor kv_len"
FORWARD = "Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse2"
GROWING = (
    "Tensor(a!) k, Tensor(b!) v, Tensor page_table, Tensor(c!) kv_len, Tensor k_new, Tensor v_new"
)
WRITTEN = ("k", "v", "kv_len")
OPTIONS = "str? kernel_name=None, str? tile=None, str? target=None, bool checks=False"
TRAINED = "bool causal=False, float? scale=None, bool deterministic=False"
LENGTHS = "SymInt[]? q_lens=None, SymInt[]? kv_lens=None"
KEYS = "int? keys_per_split=None, bool batch_invariant=False"
SPLITS = f"int? splits=None, {KEYS}"
WINDOW = "int? window_left=None, int? window_right=None, float? soft_cap=None"
SLOPES, SINKS = f"{WINDOW}, Tensor? alibi=None", "Tensor? sinks=None"
BIAS = "Tensor? bias=None"
ROTARY = "Tensor[]? rotary=None, bool interleaved=False"
VARIANT = f"{SLOPES}, {SINKS}, Tensor? mask=None, {BIAS}"
PACKED = f"bool causal=False, float? scale=None, {SPLITS}, {LENGTHS}, {OPTIONS}"


def _operator(
    name: str,
    tensors: str,
    options: str,
    run: Callable[..., Any],
    fake: Callable[..., Any],
    *,
    returns: str = "(Tensor, Tensor)",
    writes: Sequence[str] = (),
) -> Any:
    """Define an operator: run takes its tensors, and its options by their names.

    No option may be named `kernel`: inductor calls operators with an argument of that name.
    """
    n_tensors, names = tensors.count("Tensor"), re.findall(r"(\w+?)(?:_name)?=", options)

    def call(*given: Any) -> Any:
        asked = zip(names, given[n_tensors:], strict=False)
        return run(*given[:n_tensors], **{name: x for name, x in asked if x is not None})

    schema = f"({tensors}, {options}) -> {returns}"
    made = torch.library.custom_op(f"labkernels::{name}", call, mutates_args=writes, schema=schema)
    made.register_fake(lambda *given, **_: fake(*given[:n_tensors]))
    return made


def _attended(q: torch.Tensor, *_: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return q.new_empty(q.shape), q.new_empty(q.shape[:2], dtype=torch.float32)


def _outputs(step: Step[Attention], q: torch.Tensor) -> Attention:
    """Return what a step wrote, after a check that its dtype is the one that the graph was told."""
    done = step.outputs()
    if done.out.dtype != q.dtype:
        allowed = f"one that writes {q.dtype}, as q, in a graph of torch.compile"
        name = step.plan and step.plan.kernel
        raise ValueError(f"kernel = {name!r} writes {done.out.dtype}, allowed: {allowed}")
    return done


def _cached(verb: Callable[..., Any], kind: type, begin: int = 1) -> Callable[..., tuple[Any, ...]]:
    """Return a verb that takes the four tensors of its cache one by one, from `begin` on."""

    def run(*given: torch.Tensor, **options: Any) -> tuple[Any, ...]:
        cache = kind(*given[begin : begin + 4])
        step = verb(*given[:begin], cache, *given[begin + 4 :], **options)
        return tuple(_outputs(step, given[0]))

    return run


def _prefill(*given: torch.Tensor, deterministic: bool = False, **options: Any) -> tuple[Any, ...]:
    del deterministic  # only of the backward pass
    *rows, cu_seqlens_q, cu_seqlens_k = given
    q, k, v = with_rows(*rows)
    step = prefill(q, RaggedKV(k, v, cu_seqlens_k), cu_seqlens_q, **options)
    return tuple(_outputs(step, q))


def _backward(*given: torch.Tensor, **options: Any) -> tuple[Any, ...]:
    *rows, lse2, cu_seqlens_q, cu_seqlens_k = given
    tensors = (*with_rows(*rows), lse2.contiguous(), cu_seqlens_q, cu_seqlens_k)
    return tuple(backward(*tensors, **options).outputs())


def _append(*given: torch.Tensor, **options: Any) -> None:
    append(PagedKV(*given[:4]), *given[4:], **options)


def _prefilled(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    out, lse2 = _attended(q)
    return out.new_empty((*q.shape[:2], v.shape[-1])), lse2


_operator(
    "decode",
    f"Tensor q, Tensor k, Tensor v, {PAGES}",
    f"float? scale=None, {KEYS}, SymInt[]? kv_lens=None, {SLOPES}, {SINKS}, {BIAS}, {OPTIONS}",
    _cached(decode, PagedKV),
    _attended,
)
_operator(
    "mla_decode",
    f"Tensor q_nope, Tensor q_pe, Tensor ckv, Tensor kpe, {PAGES}, Tensor? cu_seqlens_q",
    PACKED.replace("causal=False", "causal=True"),
    _cached(mla_decode, LatentKV, begin=2),
    _attended,
)
_operator(
    "prefill_paged",
    f"Tensor q, Tensor k, Tensor v, {PAGES}, Tensor cu_seqlens_q",
    f"{PACKED}, {VARIANT}",
    _cached(prefill, PagedKV),
    _prefilled,
)
_operator(
    "append",
    f"{GROWING}, Tensor cu_seqlens_new",
    f"{ROTARY}, SymInt[]? new_lens=None, SymInt[]? kv_lens=None, str? target=None,"
    " bool checks=False",
    _append,
    lambda *_: None,
    returns="()",
    writes=WRITTEN,
)
_operator(
    "with_kvcache",
    f"Tensor q, {GROWING}, Tensor cu_seqlens_q",
    PACKED.replace("causal=False", "causal=True") + f", {ROTARY}, {VARIANT}",
    _cached(with_kvcache, PagedKV),
    _prefilled,
    writes=WRITTEN,
)
_operator(
    "backward",
    f"{FORWARD}, {ENDS}",
    f"{TRAINED}, {LENGTHS}, {SLOPES}, {OPTIONS}",
    _backward,
    lambda _, *qkv_and_more: tuple(x.new_empty(x.shape) for x in qkv_and_more[:3]),
    returns="(Tensor, Tensor, Tensor)",
)
_operator(
    "backward_of_sinks",
    f"{FORWARD}, {ENDS}, Tensor sinks",
    f"{TRAINED}, {LENGTHS}, {SLOPES}, {OPTIONS}",
    lambda *given, **options: _backward(*given[:-1], sinks=given[-1], **options),
    lambda _, q, k, v, *rest: tuple(x.new_empty(x.shape) for x in (q, k, v, rest[-1])),
    returns="(Tensor, Tensor, Tensor, Tensor)",
)
_differentiable = _operator(
    "prefill",
    f"Tensor q, Tensor k, Tensor v, {ENDS}",
    f"{TRAINED}, {LENGTHS}, {VARIANT}, {SPLITS}, {OPTIONS}",
    _prefill,
    _prefilled,
)


# Options of TRAINED, LENGTHS and WINDOW, which prefill and backward begin with.
N_SHARED = 8


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
    q, k, v, ends_q, ends_k, *options = inputs
    ctx.n_options, ctx.how = len(options), options[:N_SHARED]
    alibi, sinks, *others = options[N_SHARED : N_SHARED + 4]
    ctx.undone = [n for n, x in zip(("mask", "bias"), others, strict=True) if x is not None]
    ctx.save_for_backward(q, k, v, *output, ends_q, ends_k, alibi, sinks)
    ctx.mark_non_differentiable(output[1])


def _differentiate(ctx: Any, dout: torch.Tensor, dlse2: torch.Tensor) -> tuple[Any, ...]:
    del dlse2  # lse2 is not differentiable
    for name in ctx.undone:
        raise ValueError(f"{name} is given, allowed: None with gradients")
    *saved, alibi, sinks = ctx.saved_tensors
    how = (*ctx.how, alibi)
    if sinks is None:
        found, dsinks = torch.ops.labkernels.backward(dout, *saved, *how), None
    else:
        *found, dsinks = torch.ops.labkernels.backward_of_sinks(dout, *saved, sinks, *how)
    of_options = [None] * ctx.n_options
    of_options[N_SHARED + 1] = dsinks
    return *found, None, None, *of_options


_differentiable.register_autograd(_differentiate, setup_context=_keep)

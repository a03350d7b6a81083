"""The verb `backward`: the gradients of a prefill over ragged K and V."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Unpack

import torch

from labkernels.cuda.workspace import blank
from labkernels.kernels import checks as arguments
from labkernels.kernels.backward.call import BackwardCall
from labkernels.kernels.caches.ragged import RaggedKV
from labkernels.kernels.call import (
    Asked,
    Gradients,
    Options,
    SinkGradients,
    Step,
    VariantOptions,
    asked_of,
    check_option,
    check_options,
    in_graph,
    keep,
    kept,
    require_options,
)
from labkernels.kernels.checks import (
    DTYPES,
    read_lengths,
    require_cu_seqlens,
    require_device,
    require_rows,
)
from labkernels.kernels.choice import Ask, choose
from labkernels.kernels.kernel import MANY_ROWS, Shape, head_dim_v
from labkernels.kernels.memory import require_apart
from labkernels.kernels.packed_gqa.schedule import Lengths
from labkernels.variant import AttentionVariant


class BackwardStepOptions(Options, VariantOptions, total=False):
    """The options of a backward pass, apart from the mask, the outputs and the lengths."""

    scale: float | None


class BackwardOptions(BackwardStepOptions, total=False):
    """The options of a backward pass; those of a variant are the forward pass's.

    deterministic: every sum has one order, so that the same call gives the same bits; this costs up
    to two more products. Otherwise the GPU's timing decides the order in which tiles of keys are
    added to dq. dq, dk, dv, and dsinks with sinks: tensors for the gradients; the default is fresh
    ones. q_lens, kv_lens: the lengths of the requests, if the caller's host knows them; they are
    then not read from a GPU.
    Units: scale multiplies q k, by default 1 / sqrt(head_dim).
    """

    causal: bool
    deterministic: bool
    dq: torch.Tensor | None
    dk: torch.Tensor | None
    dv: torch.Tensor | None
    dsinks: torch.Tensor | None
    q_lens: Sequence[int] | None
    kv_lens: Sequence[int] | None


def backward(
    dout: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse2: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    **options: Unpack[BackwardOptions],
) -> Step[Gradients | SinkGradients]:
    """Gradients of q, K and V, and of sinks, given dout, the gradient of a prefill's output.

    Shapes: q [total_q, q_heads, head_dim], k, v [total_k, kv_heads, channels], out, dout as q with
    the channels of v, fp16 or bf16; lse2 [total_q, q_heads] fp32, as `prefill` gives it with out;
    cu_seqlens_q, cu_seqlens_k [batch + 1] int32. v has as many channels as q and k, or 128 with 192
    of q and k. A causal mask is aligned to the end, as in `prefill`.
    options: the fields of BackwardOptions.
    Units: scale multiplies q k (default 1 / sqrt(head_dim)); lse2 is in base 2.
    Raises: ValueError naming the argument, its value and what is allowed; then nothing is written.

    >>> from labkernels import attention
    >>> ends = torch.tensor([0, 8]).int()
    >>> q, k, v, dout = torch.randn(4, 8, 2, 64).half()
    >>> out, lse2 = attention(q, k, v, ends, ends)
    >>> dq, dk, dv = backward(dout, q, k, v, out, lse2, ends, ends).outputs()
    >>> dv.sum(0).allclose(dout.sum(0), atol=0.02)  # each row of weights sums to 1
    True
    """
    given = (dout, q, k, v, out, lse2, cu_seqlens_q, cu_seqlens_k)
    if torch.compiler.is_compiling():
        if options.get("sinks") is None:
            return in_graph("backward", Gradients, *given, **options)
        sinks, others = options["sinks"], {n: x for n, x in options.items() if n != "sinks"}
        return in_graph("backward_of_sinks", SinkGradients, *given, sinks, **others)
    if not options.keys() <= BackwardOptions.__annotations__.keys():
        require_options("backward", options, BackwardOptions)
    if True in [getattr(x, "is_neg", bool)() for x in given]:  # a generator is called for each
        given = tuple(map(arguments.resolved, given))
    step = backward_step(*given, **options)
    step.run()
    return step


def backward_step(
    dout: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse2: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    *,
    causal: bool = False,
    deterministic: bool = False,
    dq: torch.Tensor | None = None,
    dk: torch.Tensor | None = None,
    dv: torch.Tensor | None = None,
    dsinks: torch.Tensor | None = None,
    q_lens: Sequence[int] | None = None,
    kv_lens: Sequence[int] | None = None,
    **options: Unpack[BackwardStepOptions],
) -> Step[Gradients | SinkGradients]:
    """Prepare a backward pass that can run many times; the lengths are fixed here.

    Raises: ValueError naming the argument, its value and what is allowed.

    >>> from labkernels import attention
    >>> ends = torch.tensor([0, 8]).int()
    >>> q, k, v, dout = torch.randn(4, 8, 2, 64).half()
    >>> step = backward_step(dout, q, k, v, *attention(q, k, v, ends, ends), ends, ends)
    >>> step.run()
    >>> step.dq.shape
    torch.Size([8, 2, 64])
    """
    asked, of_variant = asked_of("backward_step", q, options, BackwardStepOptions, causal=causal)
    if not isinstance(cu_seqlens_k, torch.Tensor):
        arguments.require_tensor("cu_seqlens_k", cu_seqlens_k)
    kv, given = RaggedKV(k, v, cu_seqlens_k), {"dout": dout, "q": q, "out": out}
    every = given | {"k": k, "v": v, "lse2": lse2, **of_variant}
    arguments.require_no_gradient("backward", **every)
    outputs = {"dq": dq, "dk": dk, "dv": dv, "dsinks": dsinks}
    if dsinks is not None and "sinks" not in of_variant:
        raise ValueError("dsinks without sinks, allowed: None")
    require_apart(outputs, every)
    names = (*given, "lse2", "cu_seqlens_q")
    of_q = arguments.facts(*given.values(), lse2, cu_seqlens_q, names=names)
    target = asked.target
    tensors = arguments.once_per_facts(
        ("backward", target, *of_q, kv.facts),
        lambda: _check_tensors(q, kv, lse2, cu_seqlens_q, target, dout=dout, out=out),
    )
    for name, tensor in given.items():
        arguments.require_place(name, tensor)
    q_lengths = read_lengths("cu_seqlens_q", cu_seqlens_q, len(q), q_lens)
    lengths = Lengths(q_lengths, kv.read_lengths(kv_lens))
    facts, key = (tensors, lengths.q.tobytes(), lengths.kv.tobytes()), (*asked, deterministic)
    checked = (dout, q, kv, lengths, asked, deterministic)
    call = kept(facts, key) or keep(facts, key, _checked(*checked))
    likes = {name: like for name in outputs if (like := getattr(call, name)) is not None}
    made: dict[str, Any] = {n: arguments.output(n, outputs[n], x) for n, x in likes.items()}
    made |= {"cu_seqlens_q": cu_seqlens_q, "lse2": lse2, "variant_tensors": of_variant}
    return call.choice.kernel.prepare(call.on(**given, kv=kv, **made))


def _checked(
    dout: torch.Tensor,
    q: torch.Tensor,
    kv: RaggedKV,
    lengths: Lengths,
    asked: Asked,
    deterministic: bool,
) -> BackwardCall:
    """Return the checked call of these arguments without its tensors: only their facts count."""
    check_options(asked)
    check_option("deterministic", deterministic)
    variant = replace(asked.variant, causal=asked.causal)
    gpu, shape = arguments.target_gpu(q.device, asked.target), _shape(dout, q, kv, variant)
    ask = Ask(asked.kernel, asked.tile, asked.policy, deterministic)
    choice = choose("backward", shape, gpu, ask)
    found = {"dq": q.shape, "dk": kv.k.shape, "dv": kv.v.shape}
    sinks = blank((q.shape[1],), torch.float32, q.device) if variant.sinks else None
    return BackwardCall(
        choice=choice,
        gpu=gpu,
        device=q.device,
        checks=asked.checks,
        lengths=lengths,
        variant=shape.variant,
        group=shape.group,
        kv_heads=kv.kv_heads,
        ordered=choice.instance.tile.dq == "ordered",
        scale=arguments.scale_of(asked.scale, shape.head_dim),
        dsinks=sinks,
        **{name: blank(tuple(shape), q.dtype, q.device) for name, shape in found.items()},
    )


def _shape(dout: torch.Tensor, q: torch.Tensor, kv: RaggedKV, variant: AttentionVariant) -> Shape:
    _, kv_heads, head_dim = kv.k.shape
    return Shape(
        dtype=DTYPES[q.dtype],
        head_dim=head_dim,
        head_dim_v=kv.head_dim_v,
        group=q.shape[1] // kv_heads,
        rows=MANY_ROWS,
        layout="ragged",
        variant=variant,
        positive_strides=arguments.has_positive_strides(q, kv.k, kv.v, dout),
    )


def _check_tensors(
    q: torch.Tensor,
    kv: RaggedKV,
    lse2: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    target: str | None,
    **alike: torch.Tensor,
) -> None:
    if kv.head_dim_v != (allowed := head_dim_v(kv.head_dim)):
        raise ValueError(f"v.shape[-1] = {kv.head_dim_v}, allowed: {allowed}, with this k")
    arguments.require_query(q, kv.k, kv.head_dim, kv.kv_heads, "[total_q, q_heads, head_dim]")
    for name, tensor in alike.items():
        if tensor.dtype != kv.k.dtype:
            raise ValueError(f"{name}.dtype = {tensor.dtype}, allowed: {kv.k.dtype}, as k")
        if tensor.shape != (allowed := (*q.shape[:2], kv.head_dim_v)):
            raise ValueError(f"{name}.shape = {tuple(tensor.shape)}, allowed: {allowed}")
        require_device(name, tensor, kv.k.device)
        require_rows(name, tensor)
    require_cu_seqlens("cu_seqlens_q", cu_seqlens_q, kv.k.device, kv.batch, "cu_seqlens_k")

    arguments.target_gpu(q.device, target)
    require_device("lse2", lse2, q.device)
    if lse2.dtype != torch.float32:
        raise ValueError(f"lse2.dtype = {lse2.dtype}, allowed: torch.float32")
    if lse2.shape != q.shape[:2] or not lse2.is_contiguous():
        raise ValueError(
            f"lse2: shape {tuple(lse2.shape)}, strides {lse2.stride()},"
            f" allowed: {tuple(q.shape[:2])}, contiguous"
        )

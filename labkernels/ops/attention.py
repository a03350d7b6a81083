"""The verb `attention`, which models train through: autograd and torch.func differentiate it."""

import math
from collections.abc import Sequence
from typing import Any, NoReturn, Unpack

import torch
from torch.autograd import Function

from labkernels.kernels.backward.api import backward as run_backward
from labkernels.kernels.caches.ragged import RaggedKV
from labkernels.kernels.call import VariantOptions, check_option, require_options
from labkernels.kernels.checks import require_tensor
from labkernels.kernels.prefill.api import prefill as run_prefill
from labkernels.units import COPY_BYTES

# Channels of q and of v for which both passes have kernels, the narrowest first.
WIDTHS = (*((width, width) for width in (32, 64, 80, 96, 128)), (192, 128), (256, 256))
TAKEN = frozenset(WIDTHS)
_TENSORS = ("q", "k", "v", "cu_seqlens_q", "cu_seqlens_k")
_FLAGS = ("deterministic", "batch_invariant")


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
    deterministic: bool = False,
    batch_invariant: bool = False,
    q_lens: Sequence[int] | None = None,
    kv_lens: Sequence[int] | None = None,
    **variant: Unpack[VariantOptions],
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute attention that torch can differentiate, by `prefill` and `backward`.

    variant: the fields of VariantOptions; sinks have a gradient, and slopes have none.
    deterministic: of the backward pass; the forward pass always is. batch_invariant: a request's
    bits, those of its gradients too, must not depend on the other requests; this includes
    deterministic. q_lens, kv_lens: the lengths of the requests, if the host knows them; then none
    is read from a GPU. Else cumulative lengths on a GPU are read once, and again after torch has
    seen them change: a training loop that keeps the two tensors reads nothing after its first step.
    Shapes: q [total_q, q_heads, head_dim], k, v [total_k, kv_heads, head_dim], fp16 or bf16;
    cu_seqlens_q, cu_seqlens_k [batch + 1] int32; -> out [total_q, q_heads, channels of v], lse2
    [total_q, q_heads] fp32, which has no gradient. The kernels take 32, 64, 80, 96, 128 and 256
    channels, and 192 with 128 of v. A head_dim between these takes as long as the next one, on
    copies that zeros widen.
    Under autocast, tensors of another floating-point type but float64 are cast to its dtype, as for
    torch's own attention. torch.func.grad and vjp work; second derivatives, forward mode and vmap
    are refused; cumulative lengths express a batch. On a GPU torch runs backward passes in a thread
    of its own: with one GPU, a loop that waits for Python saves time under
    `torch.autograd.set_multithreading_enabled(False)`.
    Units: scale multiplies q k (default 1 / sqrt(head_dim)); lse2 is in base 2.
    Raises: ValueError naming the argument, its value and what is allowed.

    >>> ends = torch.tensor([0, 3, 8]).int()  # requests of 3 and 5 tokens
    >>> q, k, v = torch.randn(3, 8, 2, 64).half().requires_grad_()
    >>> out, lse2 = attention(q, k, v, ends, ends, causal=True)
    >>> (dv,) = torch.autograd.grad(out.sum(), v)
    >>> dv[:, 0, 0].sum().round()  # the weights of each of 8 tokens sum to 1
    tensor(8., dtype=torch.float16)
    """
    q, k, v = _taken((q, k, v, cu_seqlens_q, cu_seqlens_k), (deterministic, batch_invariant))
    deterministic, alike = deterministic or batch_invariant, {"batch_invariant": batch_invariant}
    how: dict[str, Any] = {"causal": causal, "scale": scale, "q_lens": q_lens, "kv_lens": kv_lens}
    if q.shape[-1:] + v.shape[-1:] not in TAKEN and (wider := _wider(q, k, v)):
        how["scale"] = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
        channels, flags = v.shape[-1], {"deterministic": deterministic, **alike, **how, **variant}
        q, k, v = wider
        out, lse2 = attention(q, k, v, cu_seqlens_q, cu_seqlens_k, **flags)
        return out[..., :channels].contiguous(), lse2
    sinks = variant.get("sinks")
    how |= _checked(variant) if variant else {}
    if torch.compiler.is_compiling() or type(q) not in (torch.Tensor, torch.nn.Parameter):
        how |= {"deterministic": deterministic, **alike, **_of_sinks(sinks)}
        return torch.ops.labkernels.prefill(q, k, v, cu_seqlens_q, cu_seqlens_k, **how)
    # torch.func needs a Function with a setup_context, which takes longer to call than a launch
    function: Any = _Transformed if torch._C._are_functorch_transforms_active() else _Attention
    return function.apply(q, k, v, sinks, (cu_seqlens_q, cu_seqlens_k, alike, deterministic, how))


def _wider(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> list[torch.Tensor] | None:
    """Return copies that zeros widen to the channels of a kernel; None if no kernel has as many."""
    if not q.dim() == k.dim() == v.dim() == 3 or q.shape[-1] != k.shape[-1]:
        return None  # refused by name
    dims = (q.shape[-1], v.shape[-1])
    holding = [x for x in WIDTHS if x[0] >= dims[0] and x[1] >= dims[1]]
    if 0 in dims or not holding:
        return None
    width, width_v = holding[0]
    wide = ((q, width), (k, width), (v, width_v))
    return [torch.nn.functional.pad(x, (0, to - x.shape[-1])) for x, to in wide]


def _checked(variant: VariantOptions) -> dict[str, Any]:
    """Return the options of a variant, apart from the sinks, which torch differentiates."""
    require_options("attention", variant, VariantOptions)
    for name in ("alibi", "bias"):
        if torch.is_grad_enabled() and getattr(variant.get(name), "requires_grad", False):
            raise ValueError(f"{name}.requires_grad = True, allowed: False, or torch.no_grad()")
    return {name: value for name, value in variant.items() if name != "sinks"}


def _taken(tensors: tuple[Any, ...], flags: tuple[object, ...]) -> tuple[torch.Tensor, ...]:
    """Return q, k and v as autocast makes them, once all are tensors and the flags are bools."""
    for name, tensor in zip(_TENSORS, tensors, strict=True):
        if not isinstance(tensor, torch.Tensor):
            require_tensor(name, tensor)
    for name, flag in zip(_FLAGS, flags, strict=True):
        if not isinstance(flag, bool):
            check_option(name, flag)
    kind, rows = tensors[0].device.type, tensors[:3]
    if not torch.is_autocast_enabled(kind):
        return rows
    dtype = torch.get_autocast_dtype(kind)
    fits = [x.is_floating_point() and x.dtype != torch.float64 for x in rows]
    return tuple(x.to(dtype) if fit else x for x, fit in zip(rows, fits, strict=True))


class _Attention(Function):
    """The work of the operators, without torch's dispatcher, which costs more than the launch."""

    @staticmethod
    def forward(
        ctx: Any,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        sinks: torch.Tensor | None,
        asked: tuple[Any, ...],
    ) -> tuple[Any, ...]:
        ends_q, ends_k, alike, *ctx.how = (
            asked  # packed into one argument, since torch inspects each
        )
        q, k, v = with_rows(q, k, v)
        how = alike | ctx.how[1] | _of_sinks(sinks)
        done = tuple(run_prefill(q, RaggedKV(k, v, ends_k), ends_q, **how).outputs())
        ctx.save_for_backward(q, k, v, *done, ends_q, ends_k, sinks)
        ctx.mark_non_differentiable(done[1])
        ctx.set_materialize_grads(False)  # zeros for lse2 would be a launch
        return done

    @staticmethod
    def backward(ctx: Any, dout: torch.Tensor, dlse2: torch.Tensor) -> tuple[Any, ...]:
        del dlse2  # lse2 is not differentiable
        twice = torch.is_grad_enabled()  # a caller may differentiate the gradients
        gradients: Any = _Gradients.apply if twice else _backward
        return *gradients(dout, *ctx.saved_tensors, ctx.how), None


def _backward(dout: torch.Tensor, *saved: Any) -> tuple[Any, ...]:
    """Return the gradients; saved: the forward pass's tensors and options, as the context has."""
    *tensors, sinks, (deterministic, options) = saved
    given, how = (*with_rows(dout), *tensors), options | _of_sinks(sinks)
    found = run_backward(*given, deterministic=deterministic, **how).outputs()
    return tuple(found) if sinks is not None else (*found, None)


def _of_sinks(sinks: torch.Tensor | None) -> dict[str, torch.Tensor]:
    return {} if sinks is None else {"sinks": sinks}


def _no_batches(info: object, in_dims: object, *given: object) -> NoReturn:
    raise ValueError(
        "attention in torch.func.vmap, allowed: the batch as requests in cu_seqlens_q and"
        " cu_seqlens_k"
    )


def _no_tangents(ctx: object, *given: object) -> NoReturn:
    raise ValueError("attention in forward mode, allowed: torch.func.grad, torch.func.vjp")


class _Gradients(Function):
    """The gradients as torch.func transforms them; a second derivative is refused."""

    vmap = staticmethod(_no_batches)
    jvp = staticmethod(_no_tangents)

    @staticmethod
    def forward(
        dout: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: Any
    ) -> tuple[Any, ...]:
        q, k, v = with_rows(q, k, v)
        return _backward(dout, q, k, v, *rest)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *given: torch.Tensor) -> NoReturn:
        raise ValueError("a second derivative of attention, allowed: the first")


class _Transformed(Function):
    """Attention as torch.func takes it."""

    vmap = staticmethod(_no_batches)
    jvp = staticmethod(_no_tangents)

    @staticmethod
    def forward(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        sinks: torch.Tensor | None,
        asked: tuple[Any, ...],
    ) -> tuple[Any, ...]:
        ends_q, ends_k, alike, _, how = asked
        q, k, v = with_rows(q, k, v)
        how = alike | how | _of_sinks(sinks)
        return tuple(run_prefill(q, RaggedKV(k, v, ends_k), ends_q, **how).outputs())

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        q, k, v, sinks, (ends_q, ends_k, _, *ctx.how) = inputs
        ctx.save_for_backward(q, k, v, *output, ends_q, ends_k, sinks)
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, dout: torch.Tensor, dlse2: torch.Tensor) -> tuple[Any, ...]:
        del dlse2
        gradients: Any = _Gradients.apply
        return *gradients(dout, *ctx.saved_tensors, ctx.how), None


def with_rows(*tensors: torch.Tensor) -> list[torch.Tensor]:
    """Return the tensors, with a copy of each whose rows a kernel cannot load or would negate."""
    # not contiguous(), which returns a tensor without elements unchanged, whatever its strides
    return [
        x if _has_rows(x) else x.resolve_neg().clone(memory_format=torch.contiguous_format)
        for x in tensors
    ]


def _has_rows(tensor: torch.Tensor) -> bool:
    if tensor.is_neg():
        return False
    if tensor.is_contiguous() and tensor.stride(-1) == 1:  # a copy would have the same fault
        return True
    *outer, inner = tensor.stride()
    if inner != 1 or min(outer) <= 0:  # an expanded dimension: the TMA has no stride of 0
        return False
    starts = (tensor.data_ptr(), *(stride * tensor.element_size() for stride in outer))
    return all(start % COPY_BYTES == 0 for start in starts)

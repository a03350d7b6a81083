"""The ways to compute the model's attention, each named in data/."""

import importlib
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from labkernels.experiments.training.model import Attend
from labkernels.kernels.backward.api import backward
from labkernels.kernels.caches.paged import PagedKV
from labkernels.kernels.caches.ragged import RaggedKV
from labkernels.kernels.decode.api import decode_step
from labkernels.kernels.prefill.api import prefill
from labkernels.kernels.prefill.fp8 import CODES, RaggedCodes, prefill_fp8
from labkernels.policy import CUDA_CORES, TENSOR_CORES, NumericPolicy


class Ours(torch.autograd.Function):
    """A forward pass in the format that `run` says, and the lab's backward kernel in 16 bits."""

    @staticmethod
    def forward(ctx: Any, q: Any, k: Any, v: Any, ends: Any, asked: Mapping[str, Any]) -> Any:
        """Shapes: as of `prefill`."""
        out, given = asked["run"](q, RaggedKV(k, v, ends), ends, **asked["forward"])
        ctx.save_for_backward(*given, ends)
        ctx.asked = asked["backward"]
        if asked["note"]:
            asked["note"](*given)
        return out

    @staticmethod
    def backward(ctx: Any, dout: Any) -> Any:
        """Return the gradients of q, k and v."""
        q, k, v, out, lse2, ends = ctx.saved_tensors
        made = backward(dout.contiguous(), q, k, v, out, lse2, ends, ends, **ctx.asked)
        return *made.outputs(), None, None


def ours(
    policy: NumericPolicy, *, ordered: bool = True, run: Callable[..., Any] | None = None
) -> Attend:
    """Return attention by the lab's kernels, in bf16.

    ordered: whether every sum of the backward pass has one order. run: the forward pass.
    What it returns calls note(q, k, v, out, lse2) with what the backward pass takes.
    """

    def attend(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        window: int | None = None,
        note: Any = None,
    ) -> torch.Tensor:
        batch, context = q.shape[:2]
        ends = torch.arange(0, batch * context + 1, context, dtype=torch.int32, device=q.device)
        every = (context,) * batch
        shared = {"causal": True, "q_lens": every, "kv_lens": every, "window_left": window}
        asked = {
            "run": run or in_16_bits,
            "note": note,
            "forward": shared | {"policy": policy},
            "backward": shared | {"deterministic": ordered},
        }
        rows = (x.flatten(0, 1).bfloat16().contiguous() for x in (q, k, v))
        apply: Any = Ours.apply
        out: torch.Tensor = apply(*rows, ends, asked)
        return out.view(batch, context, *out.shape[1:]).to(q.dtype)

    return attend


def in_16_bits(q: torch.Tensor, kv: RaggedKV, ends: torch.Tensor, **how: Any) -> Any:
    """Run a prefill; return its output, and what the backward pass takes."""
    made = prefill(q, kv, ends, **how).outputs()
    return made.out, (q, kv.k, kv.v, *made)


def by_decode(q: torch.Tensor, kv: RaggedKV, ends: torch.Tensor, **how: Any) -> Any:
    """Run a decode with a request for each token, whose last key is the token's own.

    The requests of a text share its pages. Only decode kernels take P in two parts.
    """
    context = how["q_lens"][0]
    page = math.gcd(context, 64)  # pages that a text fills
    pages = torch.arange(len(q) // page, dtype=torch.int32, device=q.device)
    table = pages.view(-1, context // page).repeat_interleave(context, 0)
    kv_len = torch.arange(1, context + 1, dtype=torch.int32, device=q.device).repeat(kv.batch)
    pools = (x.unflatten(0, (-1, page)) for x in (kv.k, kv.v))
    of_token = {name: how[name] for name in ("policy", "window_left")}
    step = decode_step(q, PagedKV(*pools, table, kv_len), checks=False, **of_token)
    step.run()
    made = step.outputs()
    return made.out, (q, kv.k, kv.v, *made)


def in_e4m3(
    q: torch.Tensor, kv: RaggedKV, ends: torch.Tensor, *, gradients: str = "mixed", **how: Any
) -> Any:
    """Run a prefill with Q, K, V and P in e4m3, with a scale for each text and KV head.

    gradients: what the backward pass takes. "mixed": the 16-bit inputs, and the output and lse2 in
    8 bits; "codes": these, and the values of the codes; "bf16": all of a pass in bf16.
    A layer with a window has the 16-bit kernel: the one in 8 bits has no windows.
    """
    if how["window_left"] is not None:
        return in_16_bits(q, kv, ends, **how)
    codes, values, scales = [], [], {}
    for name, x in (("q", q), ("k", kv.k), ("v", kv.v)):
        grouped = x.float().view(kv.batch, -1, kv.kv_heads, x[0].numel() // kv.kv_heads)
        scale = grouped.abs().amax((1, 3)) / torch.finfo(CODES).max
        if gradients == "codes":  # a power of two, so that bf16 holds the values of the codes
            scale = scale.log2().ceil().exp2()
        scales[f"{name}_descale"], each = scale, scale[:, None, :, None]
        coded = (grouped / each).to(CODES)
        codes.append(coded.view(x.shape))
        values.append((coded.float() * each).to(x.dtype).view(x.shape))
    in_8 = {name: how[name] for name in ("causal", "q_lens", "kv_lens")}  # others are of 16 bits
    made = prefill_fp8(codes[0], RaggedCodes(*codes[1:], ends), ends, **scales, **in_8).outputs()
    if gradients == "bf16":
        return made.out, in_16_bits(q, kv, ends, **how)[1]
    return made.out, (*(values if gradients == "codes" else (q, kv.k, kv.v)), *made)


def flashinfer() -> Attend:
    """Return FlashInfer's prefill (its fa2 kernels), without gradients; one call a text."""

    def attend(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: int | None = None
    ) -> torch.Tensor:
        run = importlib.import_module("flashinfer").single_prefill_with_kv_cache
        how = {"causal": True, "backend": "fa2", "window_left": -1 if window is None else window}
        texts = zip(*(x.bfloat16() for x in (q, k, v)), strict=True)
        return torch.stack([run(*text, **how) for text in texts]).to(q.dtype)

    return attend


def torchs(backend: SDPBackend, dtype: torch.dtype = torch.bfloat16) -> Attend:
    """Return torch's attention by one of its backends; not every backend has grouped queries."""

    def attend(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: int | None = None
    ) -> torch.Tensor:
        group = q.shape[2] // k.shape[2]
        k, v = k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)
        rows, keys, values = (x.to(dtype).transpose(1, 2) for x in (q, k, v))
        mask = None if window is None else seen(q.shape[1], window, q.device)
        with sdpa_kernel(backend), torch.autocast(q.device.type, enabled=False):
            out = scaled_dot_product_attention(rows, keys, values, mask, is_causal=mask is None)
        return out.transpose(1, 2).to(q.dtype)

    return attend


def seen(context: int, window: int | None, device: torch.device) -> torch.Tensor:
    """Return which keys (across) a query (down) sees, causal and in its window."""
    every = torch.ones(context, context, dtype=torch.bool, device=device).tril()
    return every if window is None else every.triu(-window)


def rounded_inputs(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: int | None = None
) -> torch.Tensor:
    """Return attention in fp32 of inputs in bf16: what a kernel in bf16 should compute."""
    rounded = (x.bfloat16().float() for x in (q, k, v))
    return torchs(SDPBackend.MATH, torch.float32)(*rounded, window).to(q.dtype)


# "e4m3" but for the gradients
CONTROLS = ("e4m3, gradients of its codes", "e4m3, gradients of bf16")
# The forward pass by `decode`: P in two parts, and, as a control, in the 16 bits of "tensor cores"
BY_DECODE = ("P as hi + lo", "tensor cores, decode")
# Every way by its name in data/. The first is the one that is repeated.
WAYS: Mapping[str, Callable[[], Attend]] = {
    "tensor cores": partial(ours, TENSOR_CORES),
    "tensor cores, free order": partial(ours, TENSOR_CORES, ordered=False),
    "rounded denominator": partial(ours, NumericPolicy(denominator="rounded")),
    "CUDA cores": partial(ours, CUDA_CORES),
    BY_DECODE[0]: partial(ours, NumericPolicy(p="input_x2"), run=by_decode),
    BY_DECODE[1]: partial(ours, TENSOR_CORES, run=by_decode),
    "torch flash": partial(torchs, SDPBackend.FLASH_ATTENTION),
    "torch cuDNN": partial(torchs, SDPBackend.CUDNN_ATTENTION),
    "torch efficient": partial(torchs, SDPBackend.EFFICIENT_ATTENTION),
    "torch math": partial(torchs, SDPBackend.MATH),
    "torch fp32": partial(torchs, SDPBackend.MATH, torch.float32),
    "e4m3": partial(ours, TENSOR_CORES, run=in_e4m3),
    CONTROLS[0]: partial(ours, TENSOR_CORES, run=partial(in_e4m3, gradients="codes")),
    CONTROLS[1]: partial(ours, TENSOR_CORES, run=partial(in_e4m3, gradients="bf16")),
}
FORWARD_ONLY: Mapping[str, Callable[[], Attend]] = {"FlashInfer": flashinfer}  # no gradients
REPEATED = ("tensor cores", "tensor cores, free order")

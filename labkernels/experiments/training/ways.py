"""The ways to compute the model's attention, each named in data/."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from labkernels.experiments.training.model import Attend
from labkernels.kernels.backward.api import backward
from labkernels.kernels.caches.ragged import RaggedKV
from labkernels.kernels.prefill.api import prefill
from labkernels.policy import CUDA_CORES, TENSOR_CORES, NumericPolicy


class Ours(torch.autograd.Function):
    """A forward and a backward kernel of the lab, and the policy of the forward pass."""

    @staticmethod
    def forward(ctx: Any, q: Any, k: Any, v: Any, ends: Any, asked: Mapping[str, Any]) -> Any:
        """Shapes: as of `prefill`."""
        made = prefill(q, RaggedKV(k, v, ends), ends, **asked["forward"]).outputs()
        ctx.save_for_backward(q, k, v, *made, ends)
        ctx.asked = asked
        return made.out

    @staticmethod
    def backward(ctx: Any, dout: Any) -> Any:
        """Return the gradients of q, k and v."""
        q, k, v, out, lse2, ends = ctx.saved_tensors
        how = ctx.asked["backward"]
        made = backward(dout.contiguous(), q, k, v, out, lse2, ends, ends, **how)
        return *made.outputs(), None, None


def ours(policy: NumericPolicy, kernel: str | None = None) -> Attend:
    """Return attention by the lab's kernels, in bf16, with gradients whose sums have one order."""

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        batch, context = q.shape[:2]
        lengths = {"causal": True, "q_lens": (context,) * batch, "kv_lens": (context,) * batch}
        ends = torch.arange(0, batch * context + 1, context, dtype=torch.int32, device=q.device)
        asked = {
            "forward": lengths | {"policy": policy, "kernel": kernel},
            "backward": lengths | {"deterministic": True},
        }
        rows = (x.flatten(0, 1).bfloat16().contiguous() for x in (q, k, v))
        run: Any = Ours.apply
        out: torch.Tensor = run(*rows, ends, asked)
        return out.view(batch, context, *out.shape[1:]).to(q.dtype)

    return attend


def torchs(backend: SDPBackend, dtype: torch.dtype = torch.bfloat16) -> Attend:
    """Return torch's attention by one of its backends; not every backend has grouped queries."""

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        group = q.shape[2] // k.shape[2]
        k, v = k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)
        rows, keys, values = (x.to(dtype).transpose(1, 2) for x in (q, k, v))
        with sdpa_kernel(backend), torch.autocast(q.device.type, enabled=False):
            out = scaled_dot_product_attention(rows, keys, values, is_causal=True)
        return out.transpose(1, 2).to(q.dtype)

    return attend


def rounded_inputs(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Return attention in fp32 of inputs in bf16: what a kernel in bf16 should compute."""
    rounded = (x.bfloat16().float() for x in (q, k, v))
    out: torch.Tensor = torchs(SDPBackend.MATH, torch.float32)(*rounded).to(q.dtype)
    return out


# Every way by its name in data/.
WAYS: Mapping[str, Callable[[], Attend]] = {
    "tensor cores": partial(ours, TENSOR_CORES),
    "rounded denominator": partial(ours, NumericPolicy(denominator="rounded")),
    "CUDA cores": partial(ours, CUDA_CORES, kernel="prefill_fma"),
    "torch flash": partial(torchs, SDPBackend.FLASH_ATTENTION),
    "torch fp32": partial(torchs, SDPBackend.MATH, torch.float32),
}

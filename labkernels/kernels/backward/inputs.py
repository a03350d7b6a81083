"""Random inputs of a backward workload, the same for every implementation."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from labkernels.kernels.backward.workload import Backward
from labkernels.kernels.checks import DEFAULT_TARGET
from labkernels.kernels.prefill.api import prefill
from labkernels.kernels.prefill.inputs import PrefillInputs, prefill_inputs
from labkernels.kernels.prefill.workload import Prefill
from labkernels.kernels.random_inputs import Draw
from labkernels.numerics.truth.problem import Problem
from labkernels.variant import AttentionVariant

FORWARD = "prefill_mma"  # a kernel whose GPU and CPU bits are equal


@dataclass(frozen=True, eq=False)
class BackwardInputs:
    """A prefill's tensors, its output and log-sum-exp, and the gradient of the output.

    Shapes: dout, out as forward.q, with the channels of v; lse2 [total_q, Hq], base 2.
    """

    workload: Backward
    forward: PrefillInputs
    dout: torch.Tensor
    out: torch.Tensor
    lse2: torch.Tensor

    @property
    def variant(self) -> AttentionVariant:
        """Which attention the workload asks for."""
        return self.forward.variant

    @property
    def scale(self) -> float:
        """The softmax scale."""
        return self.forward.scale

    @property
    def arguments(self) -> tuple:
        """The arguments of the verb, in its order."""
        forward, kv = self.forward, self.forward.kv
        tensors = (self.dout, forward.q, kv.k, kv.v, self.out, self.lse2)
        return (*tensors, forward.cu_seqlens_q, kv.cu_seqlens)

    def problem(self, rows: Sequence[int] | None = None) -> Problem:
        """Return the forward pass of all or some query tokens as a numerics problem."""
        return self.forward.problem(rows)


def backward_inputs(workload: Backward, draw: Draw) -> BackwardInputs:
    """Draw random q, K, V and dout, and compute out and lse2 by the lab's forward pass.

    Raises: ValueError if the workload's dtype is not fp16 or bf16.
    """
    w = workload
    lengths, heads = (w.q_lens, w.kv_lens), (w.q_heads, w.kv_heads)
    how = {"dtype": w.dtype, "variant": w.variant, "head_dim_v": w.head_dim_v}
    like = Prefill(*lengths, *heads, w.head_dim, **how)
    forward = prefill_inputs(like, draw)
    how = {"causal": w.causal, "scale": forward.scale, "kernel": FORWARD, "target": DEFAULT_TARGET}
    how |= forward.options
    done = prefill(*forward.arguments, q_lens=w.q_lens, kv_lens=w.kv_lens, **how)
    dout = draw.next().tensor(w.dtype, *done.out.shape)
    return BackwardInputs(w, forward, dout, done.out, done.lse2)

"""Random inputs of a backward workload, the same for every contender."""

from dataclasses import dataclass

from labkernels.measure.cases import exact_normal, normal
from labkernels.measure.prefill_cases import PrefillCase, exact_prefill_case, prefill_case
from labkernels.workload import Backward, Prefill

FORWARD = "prefill_mma"  # whose bits are the same on a GPU and on a CPU


@dataclass(frozen=True, eq=False)
class BackwardCase:
    """A prefill's tensors, its output and log-sum-exp, and the gradient of the output.

    Shapes: dout, out as forward.q; lse2 [total_q, Hq], base 2.
    """

    workload: Backward
    forward: PrefillCase
    dout: object
    out: object
    lse2: object

    @property
    def arguments(self) -> tuple:
        """What the verb takes, in its order."""
        forward, kv = self.forward, self.forward.kv
        tensors = (self.dout, forward.q, kv.k, kv.v, self.out, self.lse2)
        return (*tensors, forward.cu_seqlens_q, kv.cu_seqlens)


def backward_case(workload: Backward, *, seed: int, device: str = "cuda") -> BackwardCase:
    """Return standard normal q, K, V and dout, with what our forward pass gives.

    Raises: ValueError if the workload's dtype is not fp16 or bf16.
    """
    draw, _ = normal(workload.dtype, seed=seed + 1, device=device)
    return _case(workload, prefill_case(_prefill(workload), seed=seed, device=device), draw)


def exact_backward_case(workload: Backward, *, seed: int, device: str) -> BackwardCase:
    """Return a case with the same bits on every machine, as `cases.exact_decode_case`.

    Raises: ValueError if the workload's dtype is not fp16 or bf16.
    """
    draw, _ = exact_normal(workload.dtype, seed=seed + 1, device=device)
    return _case(workload, exact_prefill_case(_prefill(workload), seed=seed, device=device), draw)


def _case(workload: Backward, forward: PrefillCase, draw) -> BackwardCase:
    from labkernels import ops

    done = ops.prefill(
        forward.q,
        forward.kv,
        forward.cu_seqlens_q,
        causal=workload.causal,
        scale=forward.scale,
        kernel=FORWARD,
    )
    return BackwardCase(workload, forward, draw(*forward.q.shape), done.out, done.lse2)


def _prefill(workload: Backward) -> Prefill:
    return Prefill(
        workload.q_lens,
        workload.kv_lens,
        workload.q_heads,
        workload.kv_heads,
        workload.head_dim,
        causal=workload.causal,
        dtype=workload.dtype,
    )

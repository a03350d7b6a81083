"""The child of `counters`: prepares calls, then makes each once inside a range that has its label.

Run as `python -m labkernels.measure.counted`, with the calls as JSON on standard input.
"""

import dataclasses
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass

from labkernels.measure import ladder
from labkernels.workload import Prefill

PREFILL, BACKWARD, GEMM = "prefill", "backward", "gemm"
FAMILIES = (PREFILL, BACKWARD, GEMM)
WARMUP = 2
# Backends of torch's attention whose backward pass is counted.
BACKWARD_PEERS = {"torch_fa2": "FLASH_ATTENTION", "torch_cudnn": "CUDNN_ATTENTION"}


@dataclass(frozen=True)
class Call:
    """One call to count: of a kernel or peer, on batch requests of length tokens.

    family "gemm": cuBLAS on three square matrices of `length` rows; the rest is then without use.
    Raises: ValueError if family is not one of these.
    """

    name: str
    family: str = PREFILL
    batch: int = 4
    length: int = 4096
    heads: int = 16
    head_dim: int = 128
    causal: bool = False
    dtype: str = "bf16"
    tile: str = ""

    def __post_init__(self) -> None:
        if self.family not in FAMILIES:
            raise ValueError(f"family = {self.family!r}, allowed: {', '.join(FAMILIES)}")

    @property
    def label(self) -> str:
        """The call in one word, as the profiler's range is named."""
        mask = "causal" if self.causal else "full"
        parts = (self.family, self.name, self.batch, self.length, self.heads, self.head_dim)
        return "/".join(map(str, (*parts, mask, self.dtype, self.tile or "default")))

    @property
    def workload(self) -> Prefill:
        """The shapes, of a forward or of what is differentiated."""
        lengths = (self.length,) * self.batch
        return Prefill(
            lengths,
            lengths,
            self.heads,
            self.heads,
            self.head_dim,
            causal=self.causal,
            dtype=self.dtype,
        )


def to_json(calls: list[Call]) -> str:
    """Return calls as the child reads them."""
    return json.dumps([dataclasses.asdict(call) for call in calls])


def action(call: Call, *, seed: int = 0) -> Callable[[], object]:
    """Return what makes the call on the current CUDA device, everything prepared.

    Raises: ValueError or peers.Refused if there is no such kernel, or it does not support the call.
    """
    if call.family == GEMM:
        return _gemm(call)
    from labkernels.measure.prefill_cases import prefill_case

    case = prefill_case(call.workload, seed=seed)
    return (_prefill if call.family == PREFILL else _backward)(call, case)


def _gemm(call: Call) -> Callable[[], object]:
    import torch

    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}[call.dtype]
    a, b = (torch.randn(call.length, call.length, device="cuda", dtype=dtype) for _ in range(2))
    out = torch.empty_like(a)
    return lambda: torch.mm(a, b, out=out)


def _prefill(call: Call, case) -> Callable[[], object]:
    from labkernels import ops
    from labkernels.measure import prefill_peers

    if call.name in prefill_peers.PEERS:
        return prefill_peers.PEERS[call.name].prepare(case).run
    return ops.prefill_step(
        case.q,
        case.kv,
        case.cu_seqlens_q,
        causal=call.causal,
        kernel=ladder.only(call.name, call.tile, call.head_dim) if call.tile else call.name,
        scale=case.scale,
    ).run


def _backward(call: Call, case) -> Callable[[], object]:
    if call.name in BACKWARD_PEERS:
        return _sdpa_backward(call, case)
    import torch

    from labkernels import ops

    options = {"causal": call.causal, "scale": case.scale}
    forward = ops.prefill(case.q, case.kv, case.cu_seqlens_q, **options)
    return ops.backward_step(
        torch.randn_like(forward.out),
        case.q,
        case.kv.k,
        case.kv.v,
        forward.out,
        forward.lse2,
        case.cu_seqlens_q,
        case.kv.cu_seqlens,
        kernel=call.name,
        tile=call.tile or None,
        **options,
    ).run


def _sdpa_backward(call: Call, case) -> Callable[[], object]:
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    shape = (call.batch, call.length, call.heads, call.head_dim)
    tensors = (case.q, case.kv.k, case.kv.v)
    inputs = [x.view(shape).transpose(1, 2).detach().requires_grad_() for x in tensors]
    with sdpa_kernel(getattr(SDPBackend, BACKWARD_PEERS[call.name])):
        out = torch.nn.functional.scaled_dot_product_attention(
            *inputs, is_causal=call.causal, scale=case.scale
        )
    d_out = torch.randn_like(out)
    return lambda: torch.autograd.grad(out, inputs, d_out, retain_graph=True)


def main() -> None:
    """Prepare, warm up, and make each call once between start and stop of the profiler."""
    import torch

    calls = [Call(**fields) for fields in json.load(sys.stdin)]
    for call in calls:
        try:
            run = action(call)
            for _ in range(WARMUP):
                run()
            torch.cuda.synchronize()
        except Exception as error:
            # one kernel that is missing or refuses must not cost the others their numbers
            print(f"refused {call.label}: {' '.join(str(error).split())}", flush=True)
            continue
        torch.cuda.profiler.start()
        # not push and pop, which belong to a thread: autograd launches from another one
        label = torch.cuda.nvtx.range_start(call.label)
        run()
        torch.cuda.synchronize()
        torch.cuda.nvtx.range_end(label)
        torch.cuda.profiler.stop()
        del run
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()

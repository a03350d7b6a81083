"""The child of `counters`: prepares calls, then makes each once inside a range that has its label.

Run as `python -m labkernels.measure.counted`, with the calls as JSON on standard input.
"""

import dataclasses
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from labkernels.kernels.spec import discover
from labkernels.measure import ladder
from labkernels.workload import Backward, Prefill

PREFILL, BACKWARD, GEMM = "prefill", "backward", "gemm"
FAMILIES = (PREFILL, BACKWARD, GEMM)
WARMUP = 2
GEMM_CHECKED = 64  # rows


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


@dataclass(frozen=True, eq=False)
class Ready:
    """A call with everything prepared; wrong() says in words what is wrong with its last output."""

    run: Callable[[], object]
    wrong: Callable[[], str | None]


def prepare(call: Call, *, seed: int = 0, device: str = "cuda") -> Ready:
    """Return the call, prepared on a device: the current GPU, or the CPU builds' one.

    Raises: ValueError or peers.Refused if there is no such kernel, or it does not support the call.
    """
    return {GEMM: _gemm, PREFILL: _prefill, BACKWARD: _backward}[call.family](call, seed, device)


def _gemm(call: Call, seed: int, device: str) -> Ready:
    import torch

    from labkernels.measure.cases import normal

    draw, _ = normal(call.dtype, seed=seed, device=device)
    a, b = draw(call.length, call.length), draw(call.length, call.length)
    out = torch.empty_like(a)

    def wrong() -> str | None:
        rows, columns = a[:GEMM_CHECKED].double(), b.double()
        exact = rows @ columns
        # the store rounds to bf16; each sum in fp32 strays by 2^-24 of all that is summed, at most
        sums = call.length * 2**-24 * (rows.abs() @ columns.abs())
        worst = ((out[:GEMM_CHECKED] - exact).abs() / (2**-8 * exact.abs() + sums)).max().item()
        return None if worst <= 1 else f"worst error {worst:.3g} of what is allowed"

    return Ready(lambda: torch.mm(a, b, out=out), wrong)


def _prefill(call: Call, seed: int, device: str) -> Ready:
    from labkernels import ops
    from labkernels.measure import prefill_peers
    from labkernels.measure.accuracy import PEER_CHAIN, Chain

    case, judge = _prefill_case(call.workload, seed, device)
    if call.name in prefill_peers.PEERS:
        peer = prefill_peers.PEERS[call.name].prepare(case)
        return Ready(peer.run, lambda: _words(judge(peer.out(), None, PEER_CHAIN)))
    spec = ladder.only(call.name, call.tile, call.head_dim) if call.tile else None
    step = ops.prefill_step(
        case.q,
        case.kv,
        case.cu_seqlens_q,
        causal=call.causal,
        kernel=spec or call.name,
        scale=case.scale,
    )
    policy = discover()[call.name].policies[0]
    on = discover()[call.name].uses_tensor_cores(policy)
    chain = Chain(on, policy.denominator, policy.exp2)
    return Ready(step.run, lambda: _words(judge(step.out, step.lse2, chain)))


@cache
def _prefill_case(workload: Prefill, seed: int, device: str):
    from labkernels.measure.prefill_cases import prefill_case
    from labkernels.measure.prefill_judge import PrefillJudge

    case = prefill_case(workload, seed=seed, device=device)
    return case, PrefillJudge(case)


@cache
def _backward_case(workload: Backward, seed: int, device: str):
    from labkernels.measure.backward_cases import backward_case
    from labkernels.measure.backward_judge import BackwardJudge

    case = backward_case(workload, seed=seed, device=device)
    return case, BackwardJudge(case)


def _words(errors) -> str | None:
    return None if errors.passed else f"worst error {errors.bound_ratio:.3g} of its bound"


def _backward(call: Call, seed: int, device: str) -> Ready:
    from labkernels import ops
    from labkernels.measure import backward_peers
    from labkernels.measure.accuracy import PEER_CHAIN, Chain

    work = call.workload
    shape = (work.q_lens, work.kv_lens, call.heads, call.heads, call.head_dim)
    workload = Backward(*shape, causal=call.causal, dtype=call.dtype)
    case, judge = _backward_case(workload, seed, device)

    def words(found, out, lse2, chain) -> str | None:
        errors = judge(found, out, lse2, chain)
        over = [f"{name} {e.bound_ratio:.3g}" for name, e in errors.items() if not e.passed]
        return f"worst errors over their bounds: {', '.join(over)}" if over else None

    if call.name in backward_peers.PEERS:
        peer = backward_peers.PEERS[call.name].prepare(case)
        return Ready(peer.run, lambda: words(peer.gradients(), peer.out, None, PEER_CHAIN))
    step = ops.backward_step(
        *case.arguments, causal=call.causal, kernel=call.name, scale=case.forward.scale
    )
    policy = discover()[call.name].policies[0]
    chain = Chain(True, policy.denominator, policy.exp2)
    return Ready(step.run, lambda: words([step.dq, step.dk, step.dv], case.out, case.lse2, chain))


def main() -> None:
    """Prepare, warm up, count and judge each call, the profiler on for one run of it only."""
    calls = [Call(**fields) for fields in json.load(sys.stdin)]
    for call in calls:
        try:
            reason = _count(call)
        except Exception as error:
            # one kernel that is missing or refuses must not cost the others their numbers
            print(f"refused {call.label}: {' '.join(str(error).split())}", flush=True)
            continue
        if reason:
            print(f"failed {call.label}: {reason}", flush=True)


def _count(call: Call) -> str | None:
    """Run the call once under the profiler, and say what is wrong with what it computed."""
    import torch

    ready = prepare(call)
    for _ in range(WARMUP):
        ready.run()
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    # not push and pop, which belong to a thread: autograd launches from another one
    label = torch.cuda.nvtx.range_start(call.label)
    ready.run()
    torch.cuda.synchronize()
    torch.cuda.nvtx.range_end(label)
    torch.cuda.profiler.stop()
    reason = ready.wrong()
    del ready
    torch.cuda.empty_cache()
    return reason


if __name__ == "__main__":
    main()

"""The child of `counters`: prepares each call, and makes it once inside a range with its label.

Run as `python -m labkernels.measure.profiling.child`, with the calls as JSON on standard input.
"""

import dataclasses
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import torch

from labkernels.kernels.backward.workload import Backward
from labkernels.kernels.decode.workload import Decode
from labkernels.kernels.mla.workload import MlaDecode
from labkernels.kernels.operation import operations
from labkernels.kernels.prefill.workload import Prefill
from labkernels.kernels.random_inputs import Normal
from labkernels.kernels.registry import discover
from labkernels.measure.implementation import implementations, with_tile
from labkernels.measure.judge.judge import judge_of
from labkernels.measure.judge.outputs import RMSE_RATIO_MAX

PREFILL, BACKWARD, DECODE, MLA, GEMM = "prefill", "backward", "decode", "mla", "gemm"
PREFILL_FP8 = "prefill_fp8"
COUNTED = (PREFILL, BACKWARD, DECODE, MLA, GEMM, PREFILL_FP8)
Workload = Decode | Prefill | Backward | MlaDecode
PAGE_SIZE = 16  # keys per page of a decode
WARMUP = 2
GEMM_CHECKED = 64  # rows


@dataclass(frozen=True)
class Call:
    """One call to count: an implementation on `batch` requests of `length` tokens each.

    heads: query heads, `group` of them per KV head. A decode has one new token per request.
    page_size: keys per page; 0 means PAGE_SIZE for a decode, and no pages for a prefill.
    kv_dtype, keys_per_scale: of a decode's cache of 8 bits. policy: the label of a prefill's in 8
    bits. timed: the name in the rows of its time, if that is another.
    operation "gemm": cuBLAS on three square matrices with `length` rows; of the other fields it
    uses dtype alone.
    Raises: ValueError if operation is not in COUNTED.
    """

    name: str
    operation: str = PREFILL
    batch: int = 4
    length: int = 4096
    heads: int = 16
    head_dim: int = 128
    causal: bool = False
    dtype: str = "bf16"
    tile: str = ""
    group: int = 1
    page_size: int = 0
    kv_dtype: str = ""
    keys_per_scale: int = 0
    policy: str = ""
    timed: str = ""

    def __post_init__(self) -> None:
        if self.operation not in COUNTED:
            raise ValueError(f"operation = {self.operation!r}, allowed: {', '.join(COUNTED)}")

    @property
    def label(self) -> str:
        """The call in one word, the name of the profiler's range."""
        mask = "causal" if self.causal else "full"
        heads = f"{self.heads}by{self.group}" if self.group > 1 else self.heads
        name = self.timed.replace(" ", "-") or self.name
        parts = (self.operation, name, self.batch, self.length, heads, self.head_dim)
        parts = (*parts, f"page{self.page_size}") if self.page_size else parts
        parts = (*parts, f"{self.kv_dtype}by{self.keys_per_scale}") if self.kv_dtype else parts
        return "/".join(map(str, (*parts, mask, self.dtype, self.tile or "default")))

    @property
    def workload(self) -> Workload:
        """The shapes; for gradients, those of the forward pass."""
        lengths, heads = (self.length,) * self.batch, (self.heads, self.heads // self.group)
        if self.operation == DECODE:
            plain = Decode(lengths, *heads, self.head_dim, self.page_size or PAGE_SIZE, self.dtype)
            kind, keys = self.kv_dtype or None, self.keys_per_scale or None
            return replace(plain, kv_dtype=kind, keys_per_scale=keys)
        if self.operation == MLA:
            return MlaDecode(lengths, self.heads, page_size=self.page_size, dtype=self.dtype)
        how = {"causal": self.causal, "dtype": self.dtype}
        if self.operation == BACKWARD:
            return Backward(lengths, lengths, *heads, self.head_dim, **how)
        pages = self.page_size or None
        return Prefill(lengths, lengths, *heads, self.head_dim, page_size=pages, **how)


def to_json(calls: list[Call]) -> str:
    """Return calls in the form that the child reads."""
    return json.dumps([dataclasses.asdict(call) for call in calls])


@dataclass(frozen=True, eq=False)
class JudgedStep:
    """A prepared call; wrong() returns what is wrong with its last output, or None."""

    run: Callable[[], object]
    wrong: Callable[[], str | None]


def prepare(call: Call, *, seed: int = 0, device: str = "cuda") -> JudgedStep:
    """Return the call, prepared on a device: "cuda", or "cpu" for CPU builds.

    Raises: ValueError or Refused if there is no such kernel, or it does not support the call.
    """
    return (_gemm if call.operation == GEMM else _attention)(call, seed, device)


def _gemm(call: Call, seed: int, device: str) -> JudgedStep:

    draw = Normal(seed, device)
    a, b = (draw.tensor(call.dtype, call.length, call.length) for _ in "ab")
    out = torch.empty_like(a)

    def wrong() -> str | None:
        rows, columns = a[:GEMM_CHECKED].double(), b.double()
        exact = rows @ columns
        # The store rounds to bf16. Each fp32 addition errs by at most 2^-24 of the magnitudes' sum.
        sums = call.length * 2**-24 * (rows.abs() @ columns.abs())
        worst = ((out[:GEMM_CHECKED] - exact).abs() / (2**-8 * exact.abs() + sums)).max().item()
        return None if worst <= 1 else f"worst error {worst:.3g} of what is allowed"

    return JudgedStep(lambda: torch.mm(a, b, out=out), wrong)


def _attention(call: Call, seed: int, device: str) -> JudgedStep:
    inputs, judge = _judged(call.operation, call.workload, seed, device)
    known, in_8_bits = implementations(call.operation), call.operation == PREFILL_FP8
    if in_8_bits:
        (policy,) = (x for x in discover()[call.name].policies if x.label == call.policy)
        step = operations()[call.operation].step(inputs, policy=policy, tile=call.tile)
        policy = replace(policy, p="e4m3") if policy.p == "input" else policy
    elif call.name in known and not call.tile:
        policy, step = known[call.name].policy, known[call.name].prepare(inputs)
    else:
        policy = discover()[call.name].policies[0]
        kernel = with_tile(call.name, call.tile, call.head_dim) if call.tile else call.name
        step = operations()[call.operation].step(inputs, kernel=kernel)

    def wrong() -> str | None:
        errors = judge(step.outputs(), policy, step.forward)
        # a bound of an element does not count the 14 bits of sums in 8-bit products
        passed = errors.rmse_ratio <= RMSE_RATIO_MAX if in_8_bits else errors.passed
        return None if passed else errors.reason

    return JudgedStep(step.run, wrong)


@cache
def _judged(name: str, workload: Workload, seed: int, device: str):
    """Return the inputs of a workload and their judge, which its calls share."""
    inputs = operations()[name].inputs(workload, Normal(seed, device))
    return inputs, judge_of(PREFILL if name == PREFILL_FP8 else name, inputs)


def main() -> None:
    """Prepare, warm up, count and judge each call; the profiler is on during one run of each."""
    calls = [Call(**fields) for fields in json.load(sys.stdin)]
    for call in calls:
        try:
            reason = _count(call)
        except Exception as error:
            # a kernel that is missing or refuses does not keep the others from being counted
            print(f"refused {call.label}: {' '.join(str(error).split())}", flush=True)
            continue
        if reason:
            print(f"failed {call.label}: {reason}", flush=True)


def _count(call: Call) -> str | None:
    """Run the call once under the profiler, and return what is wrong with its output."""
    ready = prepare(call)
    for _ in range(WARMUP):
        ready.run()
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    # not range_push and range_pop: those mark one thread, and autograd launches from another
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

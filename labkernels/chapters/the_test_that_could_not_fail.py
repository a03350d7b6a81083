"""FlashInfer's ragged prefill test: its shapes, and the inputs on which it can or cannot fail.

Source: github.com/flashinfer-ai/flashinfer, tests/attention/test_deepseek_mla.py.
"""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from labkernels.kernels.random_inputs import ExactNormal
from labkernels.numerics.truth.problem import Problem

# Of the test in February 2025 (K all zeros), of the test since then (V too), and better ones.
INPUTS = ("K = 0", "K = V = 0", "random")
SEED = 42  # of the test


@dataclass(frozen=True)
class RaggedTest:
    """Requests of equal length, one behind the other; 192 channels of Q and K, 128 of V.

    The defaults are one of the test's shapes.
    """

    causal: bool
    dtype: str
    batch: int = 12
    q_len: int = 377
    kv_len: int = 544
    heads: int = 4
    head_dim: int = 192
    head_dim_v: int = 128

    @classmethod
    def grid(cls) -> "Iterator[RaggedTest]":
        """Yield every shape of the test, in both formats; the tests of a shape stand together."""
        shapes = itertools.product((12, 17), (544, 977), (377, 177), (4, 32, 128))
        for batch, kv_len, q_len, heads in shapes:
            for causal, dtype in itertools.product((False, True), ("fp16", "bf16")):
                yield cls(causal, dtype, batch, q_len, kv_len, heads)

    def of_length(self, kv_len: int, q_len: int = 37) -> "RaggedTest":
        """Return the same test on two short requests, which a laptop's CPU build runs at once."""
        return replace(self, batch=2, q_len=min(q_len, kv_len), kv_len=kv_len)


@dataclass(frozen=True, eq=False)
class Drawn:
    """Tensors of a test, as `ops.prefill` takes them, and the float64 problem they pose.

    Shapes: q [batch * q_len, heads, 192]; kv a RaggedKV; cu_seqlens_q [batch + 1]
    """

    test: RaggedTest
    q: Any
    kv: Any
    cu_seqlens_q: Any
    scale: float

    @property
    def dtype(self) -> str:
        """The format of q, K and V."""
        return self.test.dtype

    def problem(self) -> Problem:
        """Return the same inputs in float64."""
        arrays = (x.double().cpu().numpy() for x in (self.q, self.kv.k, self.kv.v))
        return Problem.packed(
            *arrays,
            self.kv.cu_seqlens.cpu().numpy(),
            scale=self.scale,
            cu_seqlens_q=self.cu_seqlens_q.cpu().numpy(),
            causal=self.test.causal,
        )


def draw(test: RaggedTest, inputs: str, *, seed: int, device: str = "cpu") -> Drawn:
    """Return nearly normal inputs, the same on every machine; `inputs` says which are zero.

    Raises: ValueError naming the inputs that exist.
    """
    if inputs not in INPUTS:
        raise ValueError(f"inputs = {inputs!r}, allowed: {', '.join(INPUTS)}")
    source = ExactNormal(seed, device)
    q = source.tensor(test.dtype, test.batch * test.q_len, test.heads, test.head_dim)
    k = source.tensor(test.dtype, test.batch * test.kv_len, test.heads, test.head_dim)
    v = source.tensor(test.dtype, test.batch * test.kv_len, test.heads, test.head_dim_v)
    if inputs != "random":
        k.zero_()
    if inputs == "K = V = 0":
        v.zero_()
    return _drawn(test, q, k, v, device)


def _drawn(test: RaggedTest, q, k, v, device: str) -> Drawn:
    import torch

    from labkernels.kernels.caches.ragged import RaggedKV

    ends = [
        torch.tensor([0, *itertools.accumulate([n] * test.batch)], dtype=torch.int32).to(device)
        for n in (test.q_len, test.kv_len)
    ]
    scale = 1 / math.sqrt(test.head_dim)
    return Drawn(test, q, RaggedKV(k, v, ends[1]), ends[0], scale)


def draw_upstream(test: RaggedTest, *, device: str) -> Drawn:
    """Return the inputs that the test itself drew: torch's numbers from its seed, K all zeros."""
    import torch

    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}[test.dtype]
    q, v = (x.to(device, dtype) for x in _of_the_seed(replace(test, causal=False, dtype="")))
    k = torch.zeros(len(v), test.heads, test.head_dim, device=device, dtype=dtype)
    return _drawn(test, q, k, v, device)


@lru_cache(maxsize=1)  # up to 1.7 GB; both masks, both formats and all backends take the same
def _of_the_seed(test: RaggedTest) -> tuple:
    import torch

    torch.manual_seed(SEED)
    q = torch.randn(test.batch * test.q_len, test.heads, test.head_dim)
    return q, torch.randn(test.batch * test.kv_len, test.heads, test.head_dim_v)


def reference(drawn: Drawn):
    """Return what the test compares with: attention with K = 0 in fp32, in the output's format.

    Shapes: [batch, q_len, heads, 128]
    """
    import torch

    test, v = drawn.test, drawn.kv.v
    weights = torch.ones(test.q_len, test.kv_len, device=v.device)
    if test.causal:
        weights.tril_(test.kv_len - test.q_len)
    weights /= weights.sum(-1, keepdim=True)
    weights = weights.expand(test.batch, test.heads, -1, -1)
    values = v.view(test.batch, test.kv_len, test.heads, -1).float()
    return torch.einsum("bhmn,bnhd->bmhd", weights, values).to(v.dtype)


def means(drawn: Drawn):
    """Return the right output of K = 0 in float64: the mean of the value rows that a query sees.

    Shapes: [batch, q_len, heads, 128]
    """
    import torch

    test = drawn.test
    sums = drawn.kv.v.view(test.batch, test.kv_len, test.heads, -1).double().cumsum_(1)
    if not test.causal:
        return (sums[:, -1:] / test.kv_len).expand(-1, test.q_len, -1, -1)
    seen = keys_seen(test, drawn.kv.v.device)
    return sums[:, torch.as_tensor(seen - 1)] / seen[:, None, None]


def keys_seen(test: RaggedTest, device: str = "cpu"):
    """Return how many keys each query sees; the causal mask is aligned to the end of the keys."""
    import torch

    return torch.arange(test.kv_len - test.q_len + 1, test.kv_len + 1, device=device)


# Bugs of a decode like the ten of the prefill: each stands in the kernels with tensor cores and
# without, and needs no empty request and no pool of more than 2^32 elements.
DECODE_BUGS = (
    "wrong page",
    "duplicated lane index",
    "head mix-up",
    "missing rescale",
    "wrong merge base",
    "padding in the denominator",
    "extra key",
    "dropped key",
    "last V row",
    "O accumulated in 16 bits",
)
LENGTH, SPLIT_KEYS = 177, 128  # keys of a request, the last step not full; keys of a split
PAIRS = {"prefill": ("prefill_fma", "prefill_mma"), "decode": ("decode_fma", "decode_mma")}


def small_inputs(operation: str, inputs: str, *, dtype: str = "bf16"):
    """Return two requests of 177 keys, random but for the zeros that `inputs` names."""
    if operation == "prefill":
        return draw(RaggedTest(causal=True, dtype=dtype).of_length(LENGTH), inputs, seed=0)
    from labkernels.kernels.decode.inputs import decode_inputs
    from labkernels.kernels.decode.workload import Decode

    drawn = decode_inputs(Decode((LENGTH,) * 2, 4, 2, 128, 16, dtype), ExactNormal(0))
    if inputs != "random":
        drawn.cache.k.zero_()
    if inputs == "K = V = 0":
        drawn.cache.v.zero_()
    return drawn


def bugs(operation: str) -> dict[str, Any]:
    """Return the ten mutants of an operation by name."""
    from labkernels.measure.mutants import decode, prefill

    if operation == "prefill":
        return dict(prefill.MUTANTS)
    return {name: decode.MUTANTS[name] for name in DECODE_BUGS}


def tried(operation: str, inputs: str, *, tolerances: tuple[float, ...]) -> list[dict[str, Any]]:
    """Run the right kernels and those with each of ten bugs; say what of them a test would see.

    Returns rows: operation, inputs, kernel, tensor_cores, bug ("" if right), tolerance, out (the
    share of outputs further from the rounded truth than the tolerance allows), lse (of rows).
    """
    import numpy as np

    from labkernels import ops
    from labkernels.numerics import arrays, rounding
    from labkernels.numerics.truth import oracle

    given, rows = small_inputs(operation, inputs), []
    run: Any
    how: dict[str, Any]
    truth, lse2 = oracle.attention(given.problem())
    truth = rounding.round_to(truth, given.dtype)
    if operation == "prefill":
        run, how = ops.prefill, {"causal": True}
        args = given.q, given.kv, given.cu_seqlens_q
    else:
        run, how = ops.decode, {"keys_per_split": SPLIT_KEYS}
        args = given.arguments
    for kernel, on in zip(PAIRS[operation], ("off", "on"), strict=True):
        wrong = {name: bug.spec(kernel) for name, bug in bugs(operation).items()}
        for name, spec in {"": kernel, **wrong}.items():
            done = run(*args, kernel=spec, scale=given.scale, **how)
            pairs = {"out": (done.out, truth), "lse": (done.lse2, lse2)}
            for limit in tolerances:
                told: dict[str, Any] = {"inputs": inputs, "kernel": kernel, "tensor_cores": on}
                told |= {"operation": operation, "bug": name, "tolerance": limit}
                for what, (found, right) in pairs.items():
                    off = np.abs(arrays.as_float64(found) - right)
                    told[what] = float(np.mean(~(off <= limit * (1 + np.abs(right)))))
                rows.append(told)
    return rows

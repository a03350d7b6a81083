"""FlashInfer's ragged prefill test: its shapes, and the inputs on which it can or cannot fail.

Source: github.com/flashinfer-ai/flashinfer, tests/attention/test_deepseek_mla.py.
"""

import itertools
import math
from dataclasses import dataclass, replace
from typing import Any

from labkernels.kernels.random_inputs import ExactNormal
from labkernels.numerics.truth.problem import Problem

# Of the test in February 2025 (K all zeros), of the test since then (V too), and better ones.
INPUTS = ("K = 0", "K = V = 0", "random")


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

    def of_length(self, kv_len: int) -> "RaggedTest":
        """Return the same test on two short requests, which a laptop's CPU build runs at once."""
        return replace(self, batch=2, q_len=min(37, kv_len), kv_len=kv_len)


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
    import torch

    from labkernels.kernels.caches.ragged import RaggedKV

    source = ExactNormal(seed, device)
    q = source.tensor(test.dtype, test.batch * test.q_len, test.heads, test.head_dim)
    k = source.tensor(test.dtype, test.batch * test.kv_len, test.heads, test.head_dim)
    v = source.tensor(test.dtype, test.batch * test.kv_len, test.heads, test.head_dim_v)
    if inputs != "random":
        k.zero_()
    if inputs == "K = V = 0":
        v.zero_()
    ends = [
        torch.tensor([0, *itertools.accumulate([n] * test.batch)], dtype=torch.int32).to(device)
        for n in (test.q_len, test.kv_len)
    ]
    return Drawn(test, q, RaggedKV(k, v, ends[1]), ends[0], 1 / math.sqrt(test.head_dim))


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

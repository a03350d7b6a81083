"""FlashInfer's ragged prefill test: its shapes, and the inputs on which it can or cannot fail.

Source: github.com/flashinfer-ai/flashinfer, tests/attention/test_deepseek_mla.py.
"""

from typing import Any

import numpy as np

from labkernels import ops
from labkernels.kernels.caches.paged import PagedKV
from labkernels.kernels.caches.ragged import RaggedKV
from labkernels.kernels.decode.inputs import DecodeInputs, decode_inputs
from labkernels.kernels.decode.workload import Decode
from labkernels.kernels.prefill.inputs import PrefillInputs, prefill_inputs
from labkernels.kernels.prefill.workload import Prefill
from labkernels.kernels.random_inputs import ExactNormal
from labkernels.measure.mutants import decode, prefill
from labkernels.numerics import arrays, rounding
from labkernels.numerics.truth import oracle

# Of the test in February 2025 (K all zeros), of the test since then (V too), and better ones.
INPUTS = ("K = 0", "K = V = 0", "random")
HEAD_DIM_V = 128


def ragged_test(
    causal: bool, dtype: str, *, batch: int = 2, q_len: int = 37, kv_len: int = 177
) -> Prefill:
    """Return a shape of the test: equal requests, 192 channels of Q and K, 128 of V.

    By default it is shorter than FlashInfer's, so that a laptop's CPU build runs it at once.
    """
    lengths = (q_len,) * batch, (kv_len,) * batch
    return Prefill(*lengths, 4, 4, 192, causal=causal, dtype=dtype, head_dim_v=HEAD_DIM_V)


def draw(test: Prefill, inputs: str, *, seed: int) -> PrefillInputs:
    """Return nearly normal inputs, the same on every machine; `inputs` says which are zero.

    Raises: ValueError naming the inputs that exist.
    """
    if inputs not in INPUTS:
        raise ValueError(f"inputs = {inputs!r}, allowed: {', '.join(INPUTS)}")
    drawn = prefill_inputs(test, ExactNormal(seed))
    _clear(drawn.kv, inputs)
    return drawn


def _clear(keys: RaggedKV | PagedKV, inputs: str) -> None:
    """Set to zero what `inputs` names."""
    if inputs != "random":
        keys.k.zero_()
    if inputs == "K = V = 0":
        keys.v.zero_()


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


def small_inputs(operation: str, inputs: str) -> PrefillInputs | DecodeInputs:
    """Return two requests of 177 keys, random but for the zeros that `inputs` names."""
    if operation == "prefill":
        return draw(ragged_test(True, "bf16"), inputs, seed=0)
    drawn = decode_inputs(Decode((LENGTH,) * 2, 4, 2, 128, 16, "bf16"), ExactNormal(0))
    _clear(drawn.cache, inputs)
    return drawn


def bugs(operation: str) -> dict[str, Any]:
    """Return the ten mutants of an operation by name."""
    if operation == "prefill":
        return dict(prefill.MUTANTS)
    return {name: decode.MUTANTS[name] for name in DECODE_BUGS}


def tried(operation: str, inputs: str, *, tolerances: tuple[float, ...]) -> list[dict[str, Any]]:
    """Run the right kernels and those with each of ten bugs; say what of them a test would see.

    Returns rows: operation, inputs, kernel, tensor_cores, bug ("" if right), tolerance, out (the
    share of outputs further from the rounded truth than the tolerance allows), lse (of rows).
    """
    given, rows = small_inputs(operation, inputs), []
    run: Any
    how: dict[str, Any]
    truth, lse2 = oracle.attention(given.problem())
    truth = rounding.round_to(truth, given.workload.dtype)
    run, how = ops.decode, {"keys_per_split": SPLIT_KEYS}
    if operation == "prefill":
        run, how = ops.prefill, {"causal": True}
    for kernel, on in zip(PAIRS[operation], ("off", "on"), strict=True):
        wrong = {name: bug.spec(kernel) for name, bug in bugs(operation).items()}
        for name, spec in {"": kernel, **wrong}.items():
            done = run(*given.arguments, kernel=spec, scale=given.scale, **how)
            pairs = {"out": (done.out, truth), "lse": (done.lse2, lse2)}
            for limit in tolerances:
                told: dict[str, Any] = {"inputs": inputs, "kernel": kernel, "tensor_cores": on}
                told |= {"operation": operation, "bug": name, "tolerance": limit}
                for what, (found, right) in pairs.items():
                    off = np.abs(arrays.as_float64(found) - right)
                    told[what] = float(np.mean(~(off <= limit * (1 + np.abs(right)))))
                rows.append(told)
    return rows

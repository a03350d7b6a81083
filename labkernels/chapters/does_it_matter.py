"""Does it matter: verdicts on real inputs, and what was recorded of models."""

from collections.abc import Mapping
from functools import partial

import numpy as np
import pandas as pd
import torch

from labkernels.audit.verdict import verdict
from labkernels.kernels.decode.api import decode
from labkernels.kernels.decode.inputs import DecodeInputs
from labkernels.kernels.prefill.api import prefill
from labkernels.kernels.prefill.inputs import PrefillInputs
from labkernels.measure import real_inputs
from labkernels.numerics.arrays import as_float64
from labkernels.records import store

# What ways of `effects` are called in figures, where their names do not say it.
NAMES = {
    "torch fp32": "Q, K, V not rounded",
    "torch fp32, model in bf16": "the rest of the model in bf16",
}


def means(found: pd.DataFrame, what: str) -> pd.DataFrame:
    """Return the mean over texts of each metric (across), for each way (down)."""
    part = found[found.what == what]
    return part.pivot_table(index="way", columns="metric", values="value", sort=False)


def ratios(found: pd.DataFrame) -> pd.DataFrame:
    """Return how far the ratios of training and rollout lie from 1, a row for each way."""
    rows = []
    for what, kind in (("ratio", "decode"), ("ratio of a full pass", "full pass")):
        part = found[found.what == what].groupby(["way", "metric"], sort=False).value
        mean, largest = part.mean().unstack(), part.max().unstack()
        of_text = part.apply(lambda x: (x**2).mean() ** 0.5).unstack()["log ratio of the text"]
        for way in mean.index:
            logs = mean["mean |log ratio|"][way], largest["largest |log ratio|"][way], of_text[way]
            apart = mean["KL, nats per byte"][way], 1000 * mean["other next bytes"][way]
            rows.append((kind, way, *(100 * np.expm1(log) for log in logs), *apart))
    columns = ["trains with", "attention", "mean distance from 1, %", "largest, %", "of a text, %"]
    columns += ["KL, nats per byte", "other next bytes of 1,000"]
    return pd.DataFrame(rows, columns=columns)


def losses(model: str, what: str = "held out") -> pd.DataFrame:
    """Return the loss on held-out text of each way (down) and seed (across)."""
    found = pd.DataFrame(store.read("training"))
    held = found[(found.model == model) & (found.what == what)]
    return held.pivot_table(index="way", columns="model_seed", values="value", sort=False)


def curve(model: str, ways: Mapping[str, str]) -> pd.DataFrame:
    """Return a model's loss from each seed, above the mean of all ways: kind, x and y.

    ways: what is shown, with what it is called in `kind`.
    """
    found = pd.DataFrame(store.read("training"))
    part = found[(found.model == model) & (found.what == "training")]
    y = part.value - part.groupby(["model_seed", "step"]).value.transform("mean")
    part = part.assign(x=part.step, y=y)[part.way.isin(ways)]
    return part.assign(kind=part.way.map(ways) + ", seed " + part.model_seed.astype(str))


def keys_that_share(inputs: PrefillInputs) -> np.ndarray:
    """Return how many keys share the weight of each query head's middle query.

    That is 1 over the sum of squared weights. Shapes: one request of causal queries -> [q_heads].
    """
    q, k = as_float64(inputs.q), as_float64(inputs.kv.k)
    k = k.repeat(q.shape[1] // k.shape[1], axis=1)
    scores = np.einsum("qhd,khd->hqk", q, k) * inputs.scale
    seen = np.tri(len(q), len(k), len(k) - len(q), dtype=bool)
    scores = np.where(seen, scores, -np.inf)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    made: np.ndarray = np.median(1 / np.square(p).sum(-1), axis=-1)
    return made


def answers(operation: str, kernel: str) -> list[str]:
    """Return the verdicts on a kernel's outputs: one for each head and prompt of `real_inputs`.

    Of a prompt a prefill computes the last 16 queries, and a decode the last.
    """
    prefill_of = partial(real_inputs.prefill_of, queries=16)
    make = prefill_of if operation == "prefill" else real_inputs.decode_of
    return [
        judged(operation, make((length,), (name,)), kernel)
        for name, head in real_inputs.HEADS.items()
        for length in head.lengths
    ]


def judged(operation: str, inputs: PrefillInputs | DecodeInputs, kernel: str) -> str:
    """Return the verdict on a kernel's output."""
    q, cache, *ends = inputs.arguments
    run, how = (decode, {}) if operation == "decode" else (prefill, {"causal": True})
    done = run(*inputs.arguments, kernel=kernel, scale=inputs.scale, **how)
    if ends:
        how["cu_seqlens_q"] = ends[0]
    return verdict(done.out, q, cache=cache, lse2=done.lse2, scale=inputs.scale, **how).answer


def parted(way: str) -> str:
    """Return in words when two trainings of one seed and way have other bits."""
    (row,) = store.select(store.read("training"), {"what": "first step that differs", "way": way})
    never = f"equal bits after {row['steps']} steps"
    return never if row["step"] == row["steps"] else f"other bits from step {row['step']}"


def marked(text: torch.Tensor, first: int) -> str:
    """Return bytes as text, with a mark before one of them; what cannot be printed is a dot."""
    known = {10: "\n"} | {byte: chr(byte) for byte in range(32, 127)}
    shown = [known.get(byte, "·") for byte in text.tolist()]
    return "".join([*shown[:first], "\N{BLACK RIGHT-POINTING TRIANGLE}", *shown[first:]])

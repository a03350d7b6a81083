"""Does it matter: a trained model's activations as inputs, and what was recorded of the model."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
import torch

from labkernels.audit.verdict import verdict
from labkernels.kernels.caches.ragged import RaggedKV
from labkernels.kernels.decode.api import decode
from labkernels.kernels.decode.inputs import DecodeInputs, decode_inputs
from labkernels.kernels.decode.workload import Decode
from labkernels.kernels.prefill.api import prefill
from labkernels.kernels.prefill.inputs import PrefillInputs, prefill_inputs
from labkernels.kernels.prefill.workload import Prefill
from labkernels.kernels.random_inputs import Normal
from labkernels.records import store

# What ways of `effects` are called in figures, where their names do not say it.
NAMES = {
    "torch fp32": "Q, K, V not rounded",
    "torch fp32, model in bf16": "the rest of the model in bf16",
}


def activations() -> dict[str, torch.Tensor]:
    """Return Q, K and V of a text in the trained model, in bf16; a KV head of each layer.

    Shapes: q [layers, tokens, 3, 64]; k, v [layers, tokens, 1, 64].
    """
    with np.load(store.path_of("activations.npz")) as file:
        parts = {name: torch.from_numpy(file[name].view(np.int16)) for name in ("q", "k", "v")}
    return {name: part.view(torch.bfloat16) for name, part in parts.items()}


def prefill_of(parts: dict[str, torch.Tensor], tokens: int) -> PrefillInputs:
    """Return a causal prefill of the first tokens, with a layer in place of a request."""
    layers, _, heads, channels = parts["q"].shape
    lengths = (tokens,) * layers
    work = Prefill(lengths, lengths, heads, 1, channels, causal=True, dtype="bf16")
    drawn = prefill_inputs(work, Normal(0, "cpu"))
    q, k, v = (parts[name][:, :tokens].flatten(0, 1).contiguous() for name in ("q", "k", "v"))
    return replace(drawn, q=q, kv=RaggedKV(k, v, drawn.kv.cu_seqlens))


def decode_of(parts: dict[str, torch.Tensor], lengths: Sequence[int]) -> DecodeInputs:
    """Return a decode of a token of each layer, after the keys of so many tokens."""
    layers, _, heads, channels = parts["q"].shape
    of_layer = [(layer, length) for layer in range(layers) for length in lengths]
    work = Decode(tuple(n for _, n in of_layer), heads, 1, channels, dtype="bf16")
    drawn = decode_inputs(work, Normal(0, "cpu"))
    for request, (layer, length) in enumerate(of_layer):
        page, slot = drawn.cache.places(request)
        for pool, name in zip(drawn.cache.pools, ("k", "v"), strict=True):
            pool[page, slot] = parts[name][layer, :length]
        drawn.q[request] = parts["q"][layer, length - 1]
    return drawn


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
        for way in mean.index:
            logs = mean["mean |log ratio|"][way], largest["largest |log ratio|"][way]
            rows.append((kind, way, *(100 * np.expm1(log) for log in logs)))
    columns = ["trains with", "attention", "mean distance from 1, %", "largest, %"]
    return pd.DataFrame(rows, columns=columns)


def losses(model: str = "64 channels", what: str = "held out") -> pd.DataFrame:
    """Return the loss on held-out text of each way (down) and seed (across)."""
    found = pd.DataFrame(store.read("training"))
    held = found[(found.model == model) & (found.what == what)]
    return held.pivot_table(index="way", columns="model_seed", values="value", sort=False)


def curve(seed: int, ways: Sequence[str]) -> pd.DataFrame:
    """Return the first model's loss by some ways, above the mean of all ways: kind, x and y."""
    found = pd.DataFrame(store.read("training"))
    found = found[found.model == "64 channels"]
    part = found[(found.what == "training") & (found.model_seed == seed)]
    y = part.value - part.groupby("step").value.transform("mean")
    lines = pd.DataFrame({"kind": part.way, "x": part.step, "y": y})
    return lines[lines.kind.isin(ways)]


def keys_that_share(scores: np.ndarray) -> np.ndarray:
    """Return how many keys share a row's weight: 1 over the sum of its squared weights.

    Shapes: [..., keys] -> [...].
    """
    p = np.exp(scores - scores.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    made: np.ndarray = 1 / np.square(p).sum(-1)
    return made


def answers(parts: dict[str, torch.Tensor], operation: str, kernel: str) -> list[str]:
    """Return the verdicts on a kernel's outputs: one a layer, of a decode also one a length."""
    found = []
    for layer in range(len(parts["q"])):
        one = {name: part[layer : layer + 1] for name, part in parts.items()}
        if operation == "prefill":
            found.append(judged(operation, prefill_of(one, 256), kernel))
            continue
        for length in (64, 128, 256, 512):
            found.append(judged(operation, decode_of(one, (length,)), kernel))
    return found


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

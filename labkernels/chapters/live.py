"""The kernels of decode and prefill on given inputs, in CUDA and Triton, on and off."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from labkernels import ops
from labkernels.measure.implementation import implementations, on_and_off
from labkernels.numerics.truth import oracle

# A kernel of each language, and of CUDA one with tensor cores and one without.
KERNELS = {
    "decode": ("decode_fma", "decode_mma", "triton_decode"),
    "prefill": ("prefill_fma", "prefill_mma", "triton_prefill"),
}
EVERY = [name for names in KERNELS.values() for name in names]


def outputs(operation: str, inputs, **options) -> dict[str, np.ndarray]:
    """Return the output in float64 of each kernel, "CUDA, off", "CUDA, on" and so on.

    On a machine without a GPU, Triton runs once a Bench has, which imports its interpreter.
    Shapes: [rows, heads, channels] each. options: those of the verb.
    """
    known, found = implementations(operation, on_and_off).values(), {}
    items = [item for item in known if item.spec and item.spec.name in KERNELS[operation]]
    for item in sorted(items, key=lambda item: (item.library, item.tensor_cores)):
        language = {"cuda": "CUDA", "triton": "Triton"}[item.library]
        how = {"policy": item.policy} | options
        out = output(operation, inputs, item.spec.name, **how)
        found[f"{language}, {item.tensor_cores}"] = out
    return found


def output(operation: str, inputs, kernel: str, **options) -> np.ndarray:
    """Return the output of one kernel in float64.

    Shapes: [rows, heads, channels]. options: those of the verb.
    """
    how = {"kernel": kernel, "scale": inputs.scale} | dict(inputs.options) | options
    if operation == "prefill":
        how["causal"] = inputs.variant.causal
    return getattr(ops, operation)(*inputs.arguments, **how).out.double().cpu().numpy()


def truth(inputs) -> np.ndarray:
    """Return the attention of the inputs in float64.

    Shapes: [rows, heads, channels]
    """
    return oracle.attention(inputs.problem())[0]


def by_request(values: np.ndarray, lengths: Sequence[int]) -> list[np.ndarray]:
    """Return the rows of each request.

    Shapes: values [rows, ...]; lengths: rows of each request.
    """
    return np.split(values, np.cumsum(lengths)[:-1])


def cells(
    operation: str, outs: Mapping[str, np.ndarray], exact: np.ndarray, lengths: Sequence[int]
) -> pd.DataFrame:
    """Return the relative L2 error of each request and head: operation, way, sample, head, value.

    The norms are those of the request's and head's own outputs, so that short and long requests
    are alike.
    """
    rows = []
    for way, out in outs.items():
        pairs = zip(by_request(out, lengths), by_request(exact, lengths), strict=True)
        for sample, (found, true) in enumerate(pairs):
            size = np.linalg.norm(true, axis=(0, 2))
            for head, value in enumerate(np.linalg.norm(found - true, axis=(0, 2)) / size):
                rows.append((operation, way, sample, head, value))
    return pd.DataFrame(rows, columns=["operation", "way", "sample", "head", "value"])


def beside(
    groups: Mapping[str, Mapping[str, Any]], run: Callable[..., Mapping] = outputs
) -> pd.DataFrame:
    """Return the cells of every kernel on groups of inputs, for `by_place`.

    The columns are those of `cells`, with `kind` for way, and `inputs`, the name of the group.
    groups: of each name the inputs of operations. run: gives outputs as `outputs` does.
    """
    parts = []
    for name, drawn in groups.items():
        for operation, inputs in drawn.items():
            rows = getattr(inputs.workload, "q_lens", (1,) * len(inputs.q))
            found = cells(operation, run(operation, inputs), truth(inputs), rows)
            parts.append(found.assign(kind=found.way, inputs=name))
    return pd.concat(parts, ignore_index=True)


def worst(operation: str, values: Mapping[str, np.ndarray], lengths: Sequence[int]) -> pd.DataFrame:
    """Return the largest value of each request and head: operation, way, sample, head, value.

    Shapes: values [rows, heads, channels] for each way.
    """
    rows = []
    for way, array in values.items():
        for sample, part in enumerate(by_request(array, lengths)):
            for head, value in enumerate(part.max(axis=(0, 2))):
                rows.append((operation, way, sample, head, value))
    return pd.DataFrame(rows, columns=["operation", "way", "sample", "head", "value"])

"""Errors of one attention computed in several ways, as rows that figures of chapters draw."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from labkernels.kernels.operation import operations
from labkernels.kernels.random_inputs import ExactNormal
from labkernels.numerics.arrays import as_float64

REFERENCES = {"decode": "reference", "prefill": "reference_prefill", "mla": "reference_mla"}


def outputs(operation: str, workload, ways: Mapping[str, Mapping[str, Any]]) -> dict:
    """Return the outputs of the same random inputs by each way, and "exact", that of float64.

    ways: the options of the operation's verb, such as kernel, policy or target, by name.
    Shapes: [tokens, heads, channels] float64
    """
    of = operations()[operation]
    inputs, found = of.inputs(workload, ExactNormal(0)), {}
    for name, options in {**ways, "exact": {"kernel": REFERENCES[operation]}}.items():
        step = of.step(inputs, **options)
        step.run()
        found[name] = as_float64(step.outputs().out)
    return found


def errors(operation: str, workload, ways: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    """Return the error of each element by way, request and head."""
    found = outputs(operation, workload, ways)
    exact = found.pop("exact")
    return rows({name: out - exact for name, out in found.items()}, tokens(workload))


def tokens(workload) -> Sequence[int]:
    """Return the query tokens of each request."""
    return getattr(workload, "q_lens", [getattr(workload, "q_len", 1)] * workload.batch)


def rows(values: Mapping[str, np.ndarray], lengths: Sequence[int]) -> pd.DataFrame:
    """Return a row for each element of each way, with its request and head.

    Shapes: values [tokens, heads, channels]; lengths: tokens of each request.
    """
    sample = np.repeat(np.arange(len(lengths)), lengths)
    frames = []
    for way, error in values.items():
        places = np.indices(error.shape)
        columns = {"sample": sample[places[0]].ravel(), "head": places[1].ravel()}
        frames.append(pd.DataFrame(columns | {"error": error.ravel()}).assign(way=way))
    return pd.concat(frames, ignore_index=True)

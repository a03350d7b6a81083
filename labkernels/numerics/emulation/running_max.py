"""Attention whose only error is the rounding of P, under the running maximum of a key order."""

import math
from collections.abc import Iterator
from typing import Any, Literal, get_args

import numpy as np

from labkernels.numerics import rounding

KeyOrder = Literal["ascending", "descending"]


def blocks(
    n_keys: int,
    *,
    keys: int,
    order: KeyOrder = "ascending",
    keys_per_split: int | None = None,
    chains: int = 1,
) -> Iterator[list[slice]]:
    """Yield for each running maximum its blocks of keys, in the order in which they are taken.

    A split takes `keys` keys at a time, from its start; the last block may be shorter. Where the
    warps divide these keys into `chains` parts, each part keeps a running maximum of its own.
    Raises: ValueError if order is not a KeyOrder, or chains does not divide keys.
    """
    if order not in get_args(KeyOrder):
        raise ValueError(f"order = {order!r}, allowed: {', '.join(get_args(KeyOrder))}")
    if keys % chains:
        raise ValueError(f"chains = {chains}, allowed: divisors of keys = {keys}")
    step, part = keys_per_split or max(n_keys, 1), keys // chains
    for first in range(0, n_keys, step):
        end = min(first + step, n_keys)
        for start in range(first, min(first + keys, end), part):
            found = [slice(i, min(i + part, end)) for i in range(start, end, keys)]
            yield found if order == "ascending" else found[::-1]


def running_max(scores_log2: np.ndarray, **how: Any) -> np.ndarray:
    """Return the maximum that each key's weight is taken against; `how` as in `blocks`.

    Shapes: scores_log2 and the result [..., n_keys].
    """
    found = np.empty_like(scores_log2)
    for chain in blocks(scores_log2.shape[-1], **how):
        m = np.full(scores_log2.shape[:-1], -np.inf)
        for block in chain:
            m = np.maximum(m, scores_log2[..., block].max(axis=-1))
            found[..., block] = m[..., None]
    return found


def attend(
    scores_log2: np.ndarray, v: np.ndarray, *, p_format: str, partials: str = "", **how: Any
) -> np.ndarray:
    """Return the output of a path that rounds its weights and nothing else; `how` as in `blocks`.

    partials: the format in which the outputs of several splits wait for their merge; "" for one
    that is exact.
    Shapes: scores_log2 [..., n_keys], v [..., n_keys, D], output [..., D].
    """
    shift = running_max(scores_log2, **how)
    most = scores_log2.max(axis=-1, keepdims=True)
    rounded = rounding.round_to(np.exp2(scores_log2 - shift), p_format) * np.exp2(shift - most)
    weight = np.exp2(scores_log2 - most)
    n_keys = scores_log2.shape[-1]
    step = how.get("keys_per_split") or n_keys
    if not partials or step >= n_keys:
        return _sum(rounded, v) / weight.sum(axis=-1, keepdims=True)
    out = np.zeros((*v.shape[:-2], v.shape[-1]))
    for split in range(math.ceil(n_keys / step)):
        some = slice(split * step, (split + 1) * step)
        total = weight[..., some].sum(axis=-1, keepdims=True)
        part = _sum(rounded[..., some], v[..., some, :]) / total
        out = out + total * rounding.round_to(part, partials)
    return out / weight.sum(axis=-1, keepdims=True)


def _sum(weights: np.ndarray, v: np.ndarray) -> np.ndarray:
    return (weights[..., None, :] @ v)[..., 0, :]

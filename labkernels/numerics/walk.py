"""The order in which a row's keys are walked, and the maximum that each weight is rounded against.

A kernel folds keys block by block and rounds the weights of a block against the largest score so
far. Two walks give a key the same rounded weight exactly if that running maximum is the same.
"""

from collections.abc import Iterator

import numpy as np

from labkernels.numerics import rounding

WALKS = ("forward", "backward")


def blocks(
    n_keys: int, *, keys: int, walk: str = "forward", keys_per_split: int | None = None
) -> Iterator[list[slice]]:
    """Yield for each split its blocks of keys, in the order in which they are folded.

    Blocks begin at multiples of `keys` from the start of their split; the last may be shorter.
    Raises: ValueError if walk is not one of WALKS.
    """
    if walk not in WALKS:
        raise ValueError(f"walk = {walk!r}, allowed: {', '.join(WALKS)}")
    step = keys_per_split or max(n_keys, 1)
    for first in range(0, n_keys, step):
        end = min(first + step, n_keys)
        found = [slice(i, min(i + keys, end)) for i in range(first, end, keys)]
        yield found if walk == "forward" else found[::-1]


def running_max(scores_log2: np.ndarray, **how) -> np.ndarray:
    """The maximum that each key's weight is taken against; `how` as in `blocks`.

    Shapes: scores_log2 and the result [..., n_keys].
    """
    found = np.empty_like(scores_log2)
    for split in blocks(scores_log2.shape[-1], **how):
        m = np.full(scores_log2.shape[:-1], -np.inf)
        for block in split:
            m = np.maximum(m, scores_log2[..., block].max(axis=-1))
            found[..., block] = m[..., None]
    return found


def first_folded(n_keys: int, **how) -> slice:
    """The block that the walk of an unsplit row folds first."""
    (split,) = blocks(n_keys, **how)
    return split[0]


def attend(scores_log2: np.ndarray, v: np.ndarray, *, p_format: str, **how) -> np.ndarray:
    """The output of a walk that rounds its weights and nothing else; `how` as in `blocks`.

    Shapes: scores_log2 [..., n_keys], v [..., n_keys, D], output [..., D].
    """
    shift = running_max(scores_log2, **how)
    most = scores_log2.max(axis=-1, keepdims=True)
    rounded = rounding.round_to(np.exp2(scores_log2 - shift), p_format) * np.exp2(shift - most)
    total = np.exp2(scores_log2 - most).sum(axis=-1, keepdims=True)
    return (rounded[..., None, :] @ v)[..., 0, :] / total

"""Mistakes in o, l and the maximum, which a kernel carries from step to step, in float64.

A row's keys are cut into splits, whose warps take steps of some keys in turn. Each such chain
carries a State of its own, and all States merge at the end. The kernel's own cut is not known, so
that the usual cuts are tried. Each function yields (name, where(i), outputs [..., Dv]). Shapes:
scores [n] in log2 units, v [n, Dv].
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from labkernels.numerics import rounding
from labkernels.numerics.arrays import Array
from labkernels.numerics.emulation.summation_order import SummationOrder
from labkernels.numerics.verdict.diagnosis import Mistakes

SPLIT_KEYS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
_STEP_KEYS = (16, 32, 64, 128)
_LANES = (1, 2, 4)  # lanes that share a channel on CUDA cores
_KEYS_MOST = 1024  # keys per lane that are followed one by one
_STEPS_MOST = 4096  # steps per chain: more would take seconds
_SKIPPED_MOVES = 8.0  # log2 units: largest move of a maximum that some kernels skip


@dataclass(frozen=True, eq=False)
class KeySteps:
    """A row's keys in the order in which its chains take them.

    Shapes: steps [C, T, K], -1 where there is no key; scores alike, -inf there.
    """

    steps: np.ndarray
    scores: np.ndarray
    where: str

    def by_key(self, log2_weights: Array) -> np.ndarray:
        """Return weights relative to the row's maximum by key, given their log2 by step.

        Shapes: [C, T, K] -> [n]
        """
        live = self.steps >= 0
        weights = np.empty(int(live.sum()))
        weights[self.steps[live]] = np.exp2(log2_weights[live] - self.scores.max())
        return weights


def rescales(scores: Array, v: Array) -> Mistakes:
    """A sum does not follow the running maximum, or follows it late or too rarely."""
    right = np.exp2(scores - scores.max())
    for chains in _cuts(scores, warps=(1, 2, 4, 8)):
        for name, (of_o, of_l) in _weights(chains, right).items():
            yield name, lambda i, where=chains.where: where, (of_o @ v / of_l.sum())[None]


def _cuts(scores: Array, warps: tuple[int, ...]) -> Iterator[KeySteps]:
    """Yield the keys in chains: of whole rows, and of splits."""
    n = len(scores)
    splits = [n, *(keys for keys in SPLIT_KEYS if keys < n)]
    for split, keys, count in itertools.product(splits, _STEP_KEYS, warps):
        idle = count > 1 and (count - 1) * keys >= split  # fewer warps give the same chains
        if idle or (split < n and split % keys):
            continue
        steps = SummationOrder(split, count, keys).steps(n)
        steps = steps[(steps >= 0).any((1, 2))]
        if steps.shape[1] <= _STEPS_MOST:
            where = f"steps of {keys} keys, {count} warps" + f", splits of {split}" * (split < n)
            yield KeySteps(steps, np.where(steps >= 0, scores[steps], -np.inf), where)


def _weights(chains: KeySteps, right: Array) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return, for each mistake, the weights with which every key enters o and l."""
    tops = np.maximum.accumulate(chains.scores.max(-1), axis=1)
    last = tops[:, -1:]
    # P is relative to its step's maximum, and no rescale follows
    kept = chains.by_key(chains.scores + (last - tops)[..., None])
    late = np.zeros_like(tops)
    live = np.any(chains.steps >= 0, axis=-1)[:, 2:]  # a chain may end before others
    late[:, 2:] = live * (tops[:, :-2] - tops[:, 1:-1])  # the rescale of the step before
    stale = chains.by_key(chains.scores + (last - tops + _behind(late))[..., None])
    skipped = chains.by_key(chains.scores + _skipping(chains.scores.max(-1))[..., None])
    return {
        "o not rescaled when the maximum moves": (kept, right),
        "o rescaled by a stale maximum": (stale, right),
        "l not rescaled when the maximum moves": (right, kept),
        "o and l not rescaled when the maximum moves": (kept, kept),
        "small moves of the maximum skipped, but not by P": (skipped, skipped),
    }


def _behind(moves: Array) -> Array:
    """Return the sum of the moves of all later steps. Shapes: [C, T]."""
    return np.flip(np.cumsum(np.flip(moves, 1), axis=1), 1) - moves


def _skipping(tops: Array) -> Array:
    """Return the change of a key's exponent if P follows every maximum, o and l only large moves.

    Shapes: tops, the largest score of each step alone, [C, T]
    """
    kept = np.full(len(tops), -np.inf)
    seen, moves = np.empty_like(tops), np.zeros_like(tops)
    for step, top in enumerate(tops.T):
        seen[:, step] = np.maximum(kept, top)
        far = ~(seen[:, step] - kept <= _SKIPPED_MOVES)
        moves[:, step] = np.where(far & np.isfinite(kept), kept - seen[:, step], 0.0)
        kept = np.where(far, seen[:, step], kept)
    return kept[:, None] - seen + _behind(moves)


def accumulators(scores: Array, v: Array, p_format: str) -> Mistakes:
    """o has an accumulator in 16 bits, which is rounded after every step of keys.

    With P in fp32, rounding after every key is tried too: on CUDA cores several lanes share a
    channel, each with its own sum.
    """
    fine = "fp32" if p_format.endswith("x2") else p_format
    total = np.exp2(scores - scores.max()).sum()
    for chains in _cuts(scores, warps=(1, 4)):
        tops = np.maximum.accumulate(chains.scores.max(-1), axis=1)
        p = rounding.round_to(np.exp2(chains.scores - tops[..., None]), fine)
        rescale = np.exp2(np.diff(tops, axis=1, prepend=tops[:, :1]) * -1)
        weight = np.exp2(tops[:, -1] - scores.max()) / total
        keys = p.shape[1] * p.shape[2]
        lanes_tried = [n for n in _LANES if fine == "fp32" and keys <= n * _KEYS_MOST]
        for fmt, lanes in itertools.product(("bf16", "fp16"), [0, *lanes_tried]):
            o = _summed_in(fmt, p, v[chains.steps], rescale, lanes)
            where = chains.where + f", {lanes} lanes per channel" * bool(lanes)
            yield f"o accumulated in {fmt}", lambda i, where=where: where, (weight @ o)[None]


def _summed_in(fmt: str, p: Array, v: Array, rescale: Array, lanes: int) -> Array:
    """Return the chains' sums of P v, rounded key by key in `lanes` lanes, or step by step if 0.

    Shapes: p [C, T, K], v [C, T, K, D], rescale [C, T] -> [C, D]
    """
    if not lanes:
        o = np.zeros((len(p), v.shape[-1]))
        for step in range(p.shape[1]):
            added = np.einsum("ck,ckd->cd", p[:, step], v[:, step])
            o = rounding.round_to(o * rescale[:, step, None] + added, fmt)
        return o
    p, v = (x.reshape(*x.shape[:2], -1, lanes, *x.shape[3:]) for x in (p, v))
    o = np.zeros((len(p), lanes, v.shape[-1]))
    for step, key in np.ndindex(p.shape[1:3]):
        before = o * rescale[:, step, None, None] if key == 0 else o
        o = rounding.round_to(before + p[:, step, key, :, None] * v[:, step, key], fmt)
    return o.sum(1)

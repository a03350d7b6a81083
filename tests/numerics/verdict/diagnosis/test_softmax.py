"""The diagnosis predicts mistakes in m, l and o as a loop makes them, step by step."""

import numpy as np
import pytest

from labkernels.numerics import rounding
from labkernels.numerics.verdict.diagnosis import softmax

KEYS, CHANNELS, SPLIT, TURN, WARPS = 400, 8, 256, 16, 4
CUT = "steps of 16 keys, 4 warps, splits of 256"


@pytest.fixture
def row():
    rng = np.random.default_rng(3)
    return 4 * rng.standard_normal(KEYS), rng.standard_normal((KEYS, CHANNELS))


def chains():
    """Yield the turns of each chain, as lists of keys."""
    for first in range(0, KEYS, SPLIT):
        for warp in range(WARPS):
            starts = range(first + warp * TURN, min(first + SPLIT, KEYS), WARPS * TURN)
            yield [range(at, min(at + TURN, KEYS)) for at in starts]


def output(scores, v, step):
    """Return a row by a wrong step of a State (m, o, l, rescale before), all chains merged."""
    states = []
    for turns in chains():
        state = (-np.inf, np.zeros(CHANNELS), 0.0, 1.0)
        for turn in turns:
            state = step(state, scores[turn], v[turn])
        states.append(state)
    top = max(m for m, *_ in states)
    weights = [np.exp2(m - top) for m, *_ in states]
    o = sum(w * o for w, (_, o, _, _) in zip(weights, states, strict=True))
    o = o.reshape(-1, CHANNELS).sum(0)  # the sum over lanes, where a channel has several
    return o / sum(w * l for w, (_, _, l, _) in zip(weights, states, strict=True))


def right(state, s):
    m = max(state[0], s.max())
    return m, np.exp2(state[0] - m), np.exp2(s - m)


def o_kept(state, s, v):
    m, rescale, p = right(state, s)
    return m, state[1] + p @ v, state[2] * rescale + p.sum(), rescale


def o_late(state, s, v):
    m, rescale, p = right(state, s)
    before = state[3] if state[3] > 0 else 1.0  # the first turn of a chain rescales nothing
    return m, state[1] * before + p @ v, state[2] * rescale + p.sum(), rescale


def l_kept(state, s, v):
    m, rescale, p = right(state, s)
    return m, state[1] * rescale + p @ v, state[2] + p.sum(), rescale


def skipping(state, s, v):
    seen, _, p = right(state, s)
    m = state[0] if seen - state[0] <= 8 else seen
    rescale = np.exp2(state[0] - m)
    return m, state[1] * rescale + p @ v, state[2] * rescale + p.sum(), rescale


def narrow(state, s, v):
    m, rescale, p = right(state, s)
    o = rounding.round_to(state[1] * rescale + p @ v, "fp16")
    return m, o, state[2] * rescale + p.sum(), rescale


def narrow_by_key(state, s, v):
    """Two lanes share a channel, each with an accumulator for every other key."""
    m, rescale, p = right(state, s)
    lanes = np.broadcast_to(state[1] * rescale, (2, CHANNELS)).copy()
    for j, term in enumerate(p[:, None] * v):
        lanes[j % 2] = rounding.round_to(lanes[j % 2] + term, "bf16")
    return m, lanes, state[2] * rescale + p.sum(), rescale


MISTAKES = {
    "o not rescaled when the maximum moves": o_kept,
    "o rescaled by a stale maximum": o_late,
    "l not rescaled when the maximum moves": l_kept,
    "small moves of the maximum skipped, but not by P": skipping,
    "o accumulated in fp16": narrow,
    "o accumulated in bf16": narrow_by_key,
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_that_of_the_loop(row, name):
    scores, v = row
    wanted = output(scores, v, MISTAKES[name])
    made = [*softmax.rescales(scores, v), *softmax.accumulators(scores, v, "fp32")]
    found = {where(0): out for of, where, out in made if of == name}
    assert len(found) >= 20
    # found for P in fp32, since the loop does not round P
    cut = CUT + ", 2 lanes per channel" * (MISTAKES[name] is narrow_by_key)
    assert np.allclose(found[cut], wanted, rtol=1e-5 if name.endswith("16") else 1e-12, atol=1e-9)
    weights = np.exp2(scores - scores.max())
    assert not np.allclose(wanted, weights @ v / weights.sum(), rtol=1e-5, atol=1e-6)

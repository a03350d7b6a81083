"""One table of planted edits: each is found by its class and its words, and leaves rounding alone.

Edits are made by an attention of this file, in float64, with roundings of the output alone.
"""

import functools
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from labkernels import defects
from labkernels.numerics import rounding
from labkernels.numerics.truth import oracle
from labkernels.numerics.truth.problem import Problem
from labkernels.numerics.truth.variant import VariantTensors
from labkernels.numerics.verdict import verdict
from labkernels.numerics.verdict.diagnosis import search
from labkernels.policy import NumericPolicy

B, HQ, HKV, M, L, D = 2, 4, 2, 12, 72, 32
SCALE, LOG2_E = D**-0.5, float(np.log2(np.e))
KEYS, PLACES = np.arange(L), np.arange(M)[:, None] + L - M
SLOPES, SINKS = np.array([0.5, 0.2, 0.09, 0.03]), np.array([1.0, -0.5, 2.0, 0.3])


@functools.cache
def call(asked=""):
    """Return tensors in float64, K and V for each query head, and what was asked for."""
    rng = np.random.default_rng(3)
    q, k, v = (
        rounding.round_to(rng.standard_normal((B, h, n, D)), "fp16")
        for h, n in ((HQ, M), (HKV, L), (HKV, L))
    )
    variant = {
        "cap": VariantTensors(soft_cap=2.0),
        "slopes": VariantTensors(alibi=SLOPES),
        "sinks": VariantTensors(sinks=SINKS),
        "window": VariantTensors(window_left=20),
    }.get(asked)
    problem = Problem.dense(q, k, v, scale=SCALE, causal=True, variant=variant)
    wide = {"k": np.repeat(k, HQ // HKV, 1), "v": np.repeat(v, HQ // HKV, 1)}
    return SimpleNamespace(problem=problem, q=q, asked=asked, **wide)


def seen(c):
    """Return which keys a row sees. Shapes: [M, L]."""
    own = KEYS <= PLACES
    return own & (KEYS >= PLACES - 20) if c.asked == "window" else own


def shaped(c, s):
    """Return products as the cap or the slopes change them."""
    if c.asked == "cap":
        s = 2 * np.tanh(s / 2)
    return s + SLOPES[:, None, None] * (KEYS - PLACES) if c.asked == "slopes" else s


def scores(c, q=None, k=None):
    """Return scores before the mask. Shapes: [B, Hq, M, L]."""
    q, k = c.q if q is None else q, c.k if k is None else k
    return shaped(c, q @ k.swapaxes(-1, -2) * SCALE)


def attend(c, s=None, v=None, *, mask=None, above=None, below=None, l=None):
    """Return attention with any of its steps replaced; above, below: changes of the weights."""
    s = np.where(seen(c) if mask is None else mask, scores(c) if s is None else s, -np.inf)
    m = np.maximum(s.max(-1, keepdims=True), -1e9)
    w = np.exp(s - m)
    total = (w if below is None else below(w)).sum(-1, keepdims=True)
    if c.asked == "sinks":
        total = total + np.exp(SINKS[:, None, None] - m)
    total = total if l is None else l(total, m, w)
    out = (w if above is None else above(w)) @ (c.v if v is None else v)
    return out / np.where(total == 0, 1.0, total)


def read(x, index, axis=2):
    return np.take(x, index, axis)


MAPS = {
    "j - 1": (KEYS - 1) % L,
    "j + 8": (KEYS + 8) % L,
    "n - 1 - j": L - 1 - KEYS,
    "j xor 1": KEYS ^ 1,
    "j % 32": KEYS % 32,
    "0 of its 4": KEYS // 4 * 4,
}
LATE, ODD = KEYS >= 40, KEYS % 2 == 1


def late(x, y, some=LATE):
    """Return y at some keys and x elsewhere. Shapes: [.., L, D]."""
    return np.where(some[:, None], y, x)


K, V, Q, OUT = defects.INDEX_K, defects.INDEX_V, defects.INDEX_Q, defects.INDEX_OUT
W, S, MASK = defects.WEIGHTS, defects.SCORES, defects.MASK


def in_format(x, fmt):
    return rounding.round_to(x, fmt)


TABLE = {
    **{
        f"K {n}": (lambda c, i=i: attend(c, scores(c, k=read(c.k, i))), K, n)
        for n, i in MAPS.items()
    },
    **{f"V {n}": (lambda c, i=i: attend(c, v=read(c.v, i)), V, n) for n, i in MAPS.items()},
    "K and V": (
        lambda c: attend(c, scores(c, k=np.roll(c.k, 1, 2)), np.roll(c.v, 1, 2)),
        K,
        "j - 1",
    ),
    **{
        f"late V {n}": (lambda c, i=i: attend(c, v=late(c.v, read(c.v, i))), V, n)
        for n, i in list(MAPS.items())[:4]
    },
    "V of request b - 1": (lambda c: attend(c, v=c.v[::-1]), V, "request"),
    "K of the other KV head": (
        lambda c: attend(c, scores(c, k=c.k[:, [2, 3, 0, 1]])),
        K,
        "KV head",
    ),
    "h % Hkv": (
        lambda c: attend(c, scores(c, k=c.k[:, [0, 2, 0, 2]]), c.v[:, [0, 2, 0, 2]]),
        K,
        "%",
    ),
    "K for V": (lambda c: attend(c, v=c.k), V, "read from K"),
    "V for K": (lambda c: attend(c, scores(c, k=c.v)), K, "read from V"),
    "Q of the next head": (lambda c: attend(c, scores(c, q=np.roll(c.q, -1, 1))), Q, "head j + 1"),
    "Q of the query before": (
        lambda c: attend(c, scores(c, q=np.roll(c.q, 1, 2))),
        Q,
        "query j - 1",
    ),
    **{
        f"scale times {x:.3g}": (lambda c, x=x: attend(c, x * scores(c)), S, note)
        for x, note in (
            (1 / SCALE, "left out"),
            (SCALE, "applied twice"),
            (LOG2_E, "log2(e) applied twice"),
            (-1, "sign turned"),
            (1.3, "1.3"),
            (0.9, "0.9"),
        )
    },
    "a cap": (lambda c: attend(c, 3 * np.tanh(scores(c) / 3)), S, "capped at 3"),
    "causal left out": (lambda c: attend(c, mask=KEYS >= 0), MASK, "left out"),
    "strict": (lambda c: attend(c, mask=KEYS < PLACES), MASK, "place plus -1"),
    "two more": (lambda c: attend(c, mask=KEYS <= PLACES + 2), MASK, "place plus 2"),
    "top left": (lambda c: attend(c, mask=PLACES - (L - M) >= KEYS), MASK, "first key"),
    "whole tiles": (lambda c: attend(c, mask=KEYS // 16 <= PLACES // 16), MASK, "tile of"),
    "a window": (lambda c: attend(c, mask=seen(c) & (KEYS >= PLACES - 32)), MASK, "window"),
    "keys lost": (
        lambda c: attend(c, mask=seen(c) & ~((KEYS > 19) & (KEYS < 33))),
        MASK,
        "left out",
    ),
    "keys twice": (
        lambda c: attend(c, above=lambda w: w * (1 + LATE), below=lambda w: w * (1 + LATE)),
        W,
        "times",
    ),
    "V of keys 0": (lambda c: attend(c, v=late(c.v, 0 * c.v)), defects.VALUES, "read as 0"),
    "V of keys by 1.5": (lambda c: attend(c, v=late(c.v, 1.5 * c.v)), defects.VALUES, "times 1.5"),
    "l lacks keys": (lambda c: attend(c, below=lambda w: w * ~LATE), W, ""),
    "l lacks odd keys": (lambda c: attend(c, below=lambda w: w * ~ODD), W, "denominator"),
    "scores 0": (lambda c: attend(c, np.where(LATE, 0, scores(c))), S, "are 0"),
    "V by 1.02": (lambda c: 1.02 * attend(c), (defects.VALUES, defects.STORE), "times 1.02"),
    "not divided": (lambda c: attend(c, l=lambda l, m, w: 0 * l + 1), W, "left out"),
    "eight zeros": (lambda c: attend(c, l=lambda l, m, w: l + 8 * np.exp(-m)), W, "score 0"),
    "another row": (lambda c: np.roll(attend(c), 1, 2), OUT, "token -1"),
    "heads moved": (lambda c: np.roll(attend(c), 1, 1), OUT, "head"),
    "channels": (lambda c: read(attend(c), np.arange(D) ^ 1, 3), (OUT, V), "0 from 1"),
    "negative": (lambda c: -attend(c), (defects.STORE, defects.VALUES), "times -1"),
    "absolute": (lambda c: np.abs(attend(c)), defects.STORE, "without its sign"),
    "clipped": (lambda c: np.clip(attend(c), -0.2, 0.2), defects.STORE, "clipped at 0.2"),
}
ROUNDED = {
    "out": (lambda c: in_format(attend(c), "bf16"), "output rounded to bf16"),
    "P": (lambda c: attend(c, above=lambda w: in_format(w, "e4m3")), "P rounded to e4m3"),
    "K and V": (
        lambda c: attend(c, scores(c, k=in_format(c.k, "e4m3")), in_format(c.v, "e4m3")),
        "K and V rounded to e4m3",
    ),
    "scores": (lambda c: attend(c, in_format(scores(c), "bf16")), "bf16"),
}
ASKED = {
    ("cap", "left out"): (lambda c: attend(c, c.q @ c.k.swapaxes(-1, -2) * SCALE), S, "soft cap"),
    ("cap", "of 3"): (
        lambda c: attend(c, 3 * np.tanh(c.q @ c.k.swapaxes(-1, -2) * SCALE / 3)),
        S,
        "times 1.5",
    ),
    ("slopes", "left out"): (
        lambda c: attend(c, c.q @ c.k.swapaxes(-1, -2) * SCALE),
        S,
        "left out",
    ),
    ("slopes", "next head"): (
        lambda c: attend(
            c, scores(c) + (np.roll(SLOPES, -1) - SLOPES)[:, None, None] * (KEYS - PLACES)
        ),
        S,
        "head h + 1",
    ),
    ("slopes", "twice"): (
        lambda c: attend(c, scores(c) + SLOPES[:, None, None] * (KEYS - PLACES)),
        S,
        "times 2",
    ),
    ("sinks", "left out"): (
        lambda c: attend(c, l=lambda l, m, w: w.sum(-1)[..., None]),
        W,
        "left out",
    ),
    ("sinks", "next head"): (
        lambda c: attend(
            c,
            l=lambda l, m, w: w.sum(-1)[..., None] + np.exp(np.roll(SINKS, -1)[:, None, None] - m),
        ),
        W,
        "head h + 1",
    ),
    ("window", "left out"): (lambda c: attend(c, mask=KEYS <= PLACES), MASK, "window"),
    ("window", "one more"): (
        lambda c: attend(c, mask=(KEYS <= PLACES) & (KEYS >= PLACES - 21)),
        MASK,
        "window of 21",
    ),
}


def judged(c, out):
    """Return the verdict on [B, Hq, M, D], stored in fp32."""
    rows = np.float32(out).swapaxes(1, 2).reshape(B * M, HQ, D)
    return verdict.decide(c.problem, rows, policy=NumericPolicy("fp32", out="fp32"))


def require(found, kinds, words):
    """Require a match of one of some classes, whose edit has the words, that leaves rounding."""
    kinds = kinds if isinstance(kinds, tuple) else (kinds,)
    assert found.matches, found.summary()
    listed = [m for m in found.matches if m.kind in kinds and words in str(m.edit)]
    assert listed, found.summary()
    assert all(m.after <= search.LEFT < m.before for m in found.matches)
    assert all(m.kind in defects.CLASSES for m in found.matches)


@pytest.mark.one_in(6)
@pytest.mark.parametrize("name", TABLE)
def test_a_planted_edit_is_found(name):
    make, kinds, words = TABLE[name]
    found = judged(call(), make(call()))
    assert found.answer == "BUG", found.summary()
    require(found, kinds, words)


@pytest.mark.parametrize("name", ROUNDED)
def test_a_format_is_less_exact(name):
    make, words = ROUNDED[name]
    found = judged(call(), make(call()))
    assert found.answer == "LESS EXACT", found.summary()
    require(found, defects.LESS_EXACT, words)


@pytest.mark.parametrize("name", ASKED, ids=" ".join)
def test_a_variant_that_is_misread_is_found(name):
    make, kinds, words = ASKED[name]
    c = call(name[0])
    assert judged(c, attend(c)).answer == "ROUNDING"
    require(judged(c, make(c)), kinds, words)


def test_the_region_is_that_of_the_wrong_rows_and_keys():
    c = call()
    right, wrong = attend(c), attend(c, v=late(c.v, 0 * c.v))
    some = right.copy()
    some[1, 2:, 5:] = wrong[1, 2:, 5:]
    found = judged(c, some)
    assert found.region.requests == (1,)
    assert (found.region.heads, found.region.rows) == ((2, 3), (5, 11))
    assert found.matches[0].region.keys == tuple(range(40, L))
    assert "request 1, heads from 2 on, queries from 5 on, keys from 40 on" in found.summary()


def test_channels_that_are_wrong_alone_are_located():
    c = call()
    out = attend(c)
    out[..., 8:12] = attend(c, v=np.roll(c.v, 1, 2))[..., 8:12]
    found = judged(c, out)
    assert found.region.channels == (8, 9, 10, 11)
    assert str(found.matches[0].edit) == "V read from key j - 1"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda x: x / LOG2_E, "in base e"),
        (lambda x: x + 2, "plus 2"),
        (lambda x: np.roll(x, -1, 1), "of head h + 1"),
    ],
)
def test_a_wrong_lse_does_not_blame_the_output(change, words):
    c = call()
    rows = np.float32(attend(c)).swapaxes(1, 2).reshape(B * M, HQ, D)
    s = np.where(seen(c), scores(c), -np.inf)
    lse2 = LOG2_E * np.log(np.exp(s).sum(-1)).swapaxes(1, 2).reshape(B * M, HQ)
    policy = NumericPolicy("fp32", out="fp32")
    assert verdict.decide(c.problem, rows, policy=policy, lse2=lse2).answer == "ROUNDING"
    found = verdict.decide(c.problem, rows, policy=policy, lse2=change(lse2))
    assert [m.kind for m in found.matches] == [defects.LSE]
    assert words in found.matches[0].name


def test_a_key_behind_the_last_one_is_named():
    c = call()
    problem = Problem.dense(c.q, c.k[:, ::2], c.v[:, ::2], kv_lens=[60, 50], scale=SCALE)
    out, _ = oracle.attention(replace(problem, kv_lens=np.array([61, 50])))
    found = verdict.decide(problem, np.float32(out), policy=NumericPolicy("fp32", out="fp32"))
    require(found, defects.MEMORY, "behind the last are seen, so many: 1")
    assert found.region.requests == (0,)

"""Planted bugs are found, with their class and their place."""

import itertools

import pytest
import torch

from labkernels.defects import (
    BATCH,
    INDEX_K,
    INDEX_OUT,
    INDEX_Q,
    INDEX_V,
    LESS_EXACT,
    LSE,
    MASK,
    MEMORY,
    MERGE,
    NONDETERMINISTIC,
    SCORES,
    STORE,
    VALUES,
    WEIGHTS,
)
from labkernels.probing import probe
from labkernels.variant import AttentionVariant
from tests.probing.attention import attention, dense, paged, split

HEADS = (4, 2)
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


def with_(**stages):
    return dense(stages={name.replace("_", " "): edit for name, edit in stages.items()})


def put(x, at, value):
    x = x.clone()
    x[at] = value
    return x


def as_page_1(table):
    return put(table, (slice(None), 2), table[:, 1])


def ones_like(lse):
    return torch.ones_like(lse), torch.ones_like(lse).sum(0)


def in_base_2(lse):
    w = torch.exp2(lse - lse.max(0).values)
    return w, w.sum(0)


def first_rescale_lost(a, i):
    return torch.ones_like(a) if i == 3 else a


def leaking(q, k, v):
    out, lse = attention(q, k, v)
    return put(out, (0, 0), out[0, 0] + 0.1 * out[-1, 0]), lse


def few_alone(q, k, v):
    out, lse = attention(q, k, v)
    return (out * 1.05).to(q.dtype) if len(q) > 16 else out, lse


LAST_CHANNELS = with_(k=lambda k: put(k, (..., slice(56, 64)), 0))
SOME_KEYS = with_(k=lambda k: put(k, (..., slice(64, 96), slice(None)), 0))
PAGE_OF_BOTH = paged(lambda t, n: (as_page_1(t), as_page_1(t), n))
DENSE = [
    ("scale", SCORES, {}, dense(scale=1.02 / 8)),
    ("scale left out", SCORES, {}, dense(scale=1.0)),
    ("one key too many", MASK, {}, with_(mask=lambda x, p, key, n: (key <= p + 1) & (key < n))),
    ("rescale of o", WEIGHTS, {}, with_(rescale_o=first_rescale_lost)),
    ("sum of a tile", WEIGHTS, {}, with_(p_of_l=lambda p, i: p * (i != 2))),
    ("no LSE in the merge", MERGE, {}, split(ones_like)),
    ("base of the merge", MERGE, {}, split(in_base_2)),
    ("V of a head", INDEX_V, {}, lambda q, k, v: attention(q, k, v.roll(1, 1))),
    ("K of a head", INDEX_K, {}, lambda q, k, v: attention(q, k.roll(1, 1), v)),
    ("Q of a head", INDEX_Q, {}, lambda q, k, v: attention(q.roll(1, 1), k, v)),
    ("V is K", INDEX_V, {}, lambda q, k, v: attention(q, k, k)),
    ("output channels", INDEX_OUT, {}, with_(out=lambda o: o.roll(32, -1))),
    ("K channels", SCORES, {"channels": range(56, 64)}, LAST_CHANNELS),
    ("K keys", SCORES, {"keys": range(64, 96)}, SOME_KEYS),
    ("V keys", VALUES, {"keys": range(64, 128)}, with_(p=lambda p, i: p * (i != 1))),
    ("P in 8 bits", LESS_EXACT, {}, with_(p=lambda p, i: p.to(E4M3).float())),
    ("Q in 8 bits", LESS_EXACT, {}, with_(q=lambda q: q.to(E5M2).float())),
    ("output by a factor", STORE, {}, with_(out=lambda o: 0.97 * o)),
    ("output clipped", STORE, {}, with_(out=lambda o: o.clamp(-8, 8))),
    ("a head not stored", STORE, {"heads": [1]}, with_(out=lambda o: put(o, (slice(None), 1), 0))),
    ("LSE without maximum", LSE, {}, with_(lse=lambda x: x + 1)),
    ("another request", BATCH, {"requests": [0], "heads": [0]}, leaking),
    ("many requests", BATCH, {}, few_alone),
    ("a bias", SCORES, {}, with_(s=lambda s: s + 0.8 * torch.arange(s.shape[-1]))),
]  # fmt: skip
PAGED = [
    ("first key", MASK, {"keys": [0]}, paged(stages={"mask": lambda x, p, key, n: x & (key > 0)})),
    ("beyond the length", MEMORY, {}, paged(lambda t, n: (t, t, n + 1))),
    ("page of both", INDEX_K, {"keys": range(32, 48)}, PAGE_OF_BOTH),
    ("page of V", INDEX_V, {"keys": range(32, 48)}, paged(lambda t, n: (t, as_page_1(t), n))),
    ("page of K", INDEX_K, {"keys": range(32, 48)}, paged(lambda t, n: (as_page_1(t), t, n))),
]  # fmt: skip
CASES = [("bhsd", *x) for x in DENSE] + [("paged_decode", *x) for x in PAGED]


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("layout", "name", "kind", "place", "fn"), CASES, ids=[x[1] for x in CASES]
)
def test_class_and_place(layout, name, kind, place, fn):
    sheet = probe(fn, layout, heads=HEADS)
    assert sheet.exit_code == 1, str(sheet)
    cause = sheet.defects[0]
    assert cause.kind == kind, str(cause)
    found = {axis: getattr(cause, axis) for axis in place}
    assert found == {axis: tuple(x) for axis, x in place.items()}


def test_a_race():
    count = itertools.count()

    def fn(q, k, v):
        out, lse = attention(q, k, v)
        return (put(out, (..., 1), 3.0) if next(count) % 3 == 0 else out), lse

    cause = probe(fn, heads=HEADS).defects[0]
    assert (cause.kind, cause.channels) == (NONDETERMINISTIC, (1,))


@pytest.mark.parametrize(
    ("variant", "kind", "how"),
    [
        (AttentionVariant(soft_cap=30.0), SCORES, {}),
        (AttentionVariant(causal=True, window_left=32), MASK, {"causal": True, "window": 31}),
    ],
)
def test_what_was_asked_for_is_judged(variant, kind, how):
    assert probe(dense(**how), variant=variant, heads=HEADS, quick=True).defects[0].kind == kind


def test_steps_of_long_requests():
    fn = with_(rescale_o=lambda a, i: torch.ones_like(a) if i == 9 else a)
    cause = probe(fn, heads=HEADS).defects[0]
    assert cause.kind == WEIGHTS
    assert "at [1025, 2048] keys alone" in cause.sentence


def test_a_knob_is_named():
    def fn(q, k, v, parts=1):
        return split(in_base_2, parts)(q, k, v)

    sheet = probe(fn, heads=HEADS, knobs={"parts": [1, 3]}, quick=True)
    assert sheet.defects[0].kind == MERGE
    assert "with parts=3 alone" in sheet.defects[0].sentence


def test_a_gradient_by_a_factor():
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, g):
            return 2 * g

    def fn(q, k, v):
        return torch.nn.functional.scaled_dot_product_attention(q, Doubled.apply(k), v)

    sheet = probe(fn, "bhsd", "fp32", heads=(2, 2), gradients=True, quick=True)
    assert sheet.facts["dQ"].value == sheet.facts["dV"].value == "right"
    assert "dK is by a factor of 2" in sheet.defects[0].sentence

"""Numbers that rows must share: one for each row, head or block explains too much by itself."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from labkernels.measure.strangers import inputs, runs, wrong
from labkernels.measure.strangers.inputs import Asked
from labkernels.measure.strangers.wrong import attend
from labkernels.numerics.truth import oracle
from labkernels.numerics.truth.problem import Problem
from labkernels.numerics.verdict.diagnosis import names
from labkernels.numerics.verdict.diagnosis.outputs import foreign
from labkernels.numerics.verdict.diagnosis.structure import tiles
from labkernels.numerics.verdict.diagnosis.structure.tiles import _Row
from labkernels.numerics.verdict.diagnosis.whole_kernel.keys import scaled_ends
from labkernels.numerics.verdict.diagnosis.whole_kernel.narrow import blocks, clips, ways
from labkernels.numerics.verdict.diagnosis.whole_kernel.products import masks
from labkernels.numerics.verdict.diagnosis.whole_kernel.scores import channels
from labkernels.numerics.verdict.diagnosis.whole_kernel.search import Search
from labkernels.numerics.verdict.diagnosis.whole_kernel.sums import begun
from tests.numerics.verdict.diagnosis.named import require_name
from tests.numerics.verdict.diagnosis.test_evidence import _problem as dense
from tests.numerics.verdict.diagnosis.test_evidence import _sheet as dense_sheet

SEED = 59
SHAPE = inputs.Shape(2, 4, 2, 12, 90, 64, causal=True)
DECODE = inputs.Shape(2, 4, 2, 1, 200, 64)
PREFILL = inputs.Shape(2, 4, 2, 36, 175, 128, causal=True)
LONG = inputs.Shape(2, 6, 2, 1, 593, 64)


def _judged(bug, dtype, shape=SHAPE, part="all"):
    call = inputs.call("normal", shape, dtype, SEED)
    return runs.judged(call, wrong.run(bug, call, part))


def _first(found):
    return found.matches[0].name if found.matches else ""


def _padded(w, size=64):
    p = torch.exp(w.s - w.s.amax(-1, keepdim=True))
    zeros = -w.s.shape[-1] % size * torch.exp(-w.s.amax(-1, keepdim=True))
    return (p @ w.v / (p.sum(-1, keepdim=True) + zeros)).to(w.call.q.dtype)


def test_padding_fills_the_last_tile():
    found = _judged(_padded, "fp16", DECODE)
    assert _first(found).startswith("padding in the denominator"), found.summary()
    assert "multiple of 64" in found.matches[0].where


def _row_of_head(request, head, factor):
    one = np.ones(1)
    return _Row((request, head, head // 2), 0 * one, factor * one, 1e-5 * one, 0.0, 1)


@pytest.mark.parametrize(("spread", "whose"), [(0.0, "head"), (0.008, "")])
def test_factors_near_1_are_not_alike_for_that(spread, whose):
    rng = np.random.default_rng(2)
    rows = [
        _row_of_head(request, head, 1.01 + 0.001 * head + spread * rng.random())
        for request in range(4)
        for head in range(3)
    ]
    assert tiles._whose(rows) == whose


@pytest.mark.parametrize(
    ("requests", "by_request", "whose"),
    [(1, 0.0, "KV head"), (2, 0.25, "KV head of each sample"), (2, 0.0, "head")],
)
def test_heads_share_the_factor_of_their_kv_head(requests, by_request, whose):
    rows = [
        _row_of_head(request, head, 1.1 + 0.1 * (head // 2) + by_request * request)
        for request in range(requests)
        for head in range(6)
    ]
    assert tiles._whose(rows) == whose


def _row_of_tiles(head, factors):
    error = np.full(len(factors), 1e-4)
    return _Row((0, head, head // 2), np.arange(len(factors)), np.array(factors), error, 0.0, 1)


def test_tiles_have_factors_that_the_rows_of_a_kv_head_share():
    shared = [_row_of_tiles(head, [1.0, 1.1 + head // 2, 0.9, 1.2]) for head in range(4)]
    assert tiles._of_tiles(shared)
    of_each = [_row_of_tiles(head, [1.0, 1.1 + 0.1 * head, 0.9 + 0.1 * head]) for head in range(4)]
    assert not tiles._of_tiles(of_each)
    one_in_ten = [_row_of_tiles(head, [*[1.0] * 19, 1.1 + 0.1 * head]) for head in range(4)]
    assert not tiles._of_tiles(one_in_ten)


def _scales_of_heads(w, v):
    """One KV head of each request has values that are too small, another one in each."""
    times = torch.tensor([[1.0, 0.5], [0.25, 1.0]]).double()
    return v * times.repeat_interleave(w.call.group, 1)[..., None, None]


def test_a_sink_for_each_head_needs_rows_that_share_it():
    call = inputs.call("normal", DECODE, "fp16", 1018)
    bug = wrong.valued(lambda w: _scales_of_heads(w, w.v))
    found = runs.judged(call, wrong.run(bug, call))
    assert "sink" not in _first(found), found.summary()


def _rational(w):
    cap = w.call.asked.soft_cap
    x = (w.q @ w.k.mT * w.call.scale / cap).clamp(-3, 3)
    return (cap * x * (27 + x**2) / (27 + 9 * x**2)).masked_fill(w.hidden, -math.inf)


def test_a_cap_of_another_number_leaves_no_more_than_another_function():
    shape = inputs.Shape(2, 4, 2, 12, 90, 64, causal=True)
    case = wrong.scored(_rational), shape, Asked(soft_cap=4.0)
    require_name("soft cap by another function", case, SEED)


@pytest.mark.parametrize("made", [True, False])
def test_rows_that_follow_their_weights_are_not_uninitialised(made):
    """V is read in another format, or nobody wrote the rows of the second request."""
    rng, n = np.random.default_rng(SEED), 24
    q, k, v = (rng.standard_normal((2 * n, 2, 16)) for _ in range(3))
    ends = [0, n, 2 * n]
    shared = {"scale": 0.5, "cu_seqlens_q": ends, "causal": False}
    problem = Problem.packed(q, k, v, ends, **shared)
    truth, _ = oracle.attention(problem)
    other = Problem.packed(q, k, 40 * np.sin(37 * v), ends, **shared)
    bad = np.zeros(truth.shape[:2], bool)
    bad[n:] = True
    wrong_rows = oracle.attention(other)[0] if made else 9 * rng.standard_normal(truth.shape)
    given = np.where(bad[..., None], wrong_rows, truth)
    found = foreign.of_output(problem, given, truth, np.full(truth.shape, 1e-5), bad)
    assert bool(found) != made


def _sloped(bias):
    """Return a bug in ALiBi: bias(places of queries, of keys, numbers of queries) of a distance."""

    def scores(w):
        queries, keys = w.s.shape[-2:]
        row, key = torch.arange(queries)[:, None], torch.arange(keys)
        slopes = w.call.slopes.double()[:, None, None]
        s = w.q @ w.k.mT * w.call.scale - slopes * bias(row + keys - queries, key, row)
        return s.masked_fill(w.hidden, -math.inf)

    return wrong.scored(scores)


def _reset(w, tile=32):
    """O is 0 again before each tile that has a new maximum."""
    m = torch.full((*w.s.shape[:3], 1), -math.inf, dtype=torch.float64)
    l, o = torch.zeros_like(m), torch.zeros(*w.s.shape[:3], w.v.shape[-1]).double()
    for keys in torch.arange(w.s.shape[-1]).split(tile):
        s = w.s[..., keys]
        top = torch.maximum(m, s.amax(-1, keepdim=True))
        p, by = torch.exp(s - top), torch.exp(m - top)
        l = l * by + p.sum(-1, keepdim=True)
        o = torch.where(by < 1, 0.0, o) + p @ w.v[:, :, keys]
        m = top
    return (o / l).to(w.call.q.dtype)


def _drafts_alone(w):
    """A query sees its own key and those before the first query's."""
    queries, keys = w.s.shape[-2:]
    row, key = torch.arange(queries)[:, None], torch.arange(keys)
    return w.s.masked_fill((key >= keys - queries) & (key != row + keys - queries), -math.inf)


def _lse_over_channel_0(w, out):
    return wrong.changed(out, (..., 0), torch.logsumexp(w.s, -1).to(out.dtype))


def _capped(inside, function=torch.tanh):
    def scores(w):
        s = w.call.asked.soft_cap * function(w.q @ w.k.mT * w.call.scale / inside)
        return s.masked_fill(w.hidden, -math.inf)

    return wrong.scored(scores)


SHORT = inputs.Shape(2, 4, 2, 9, 70, 32, causal=True)
ASKED = {
    "ALiBi slopes with the wrong sign, or ALiBi by another distance": (
        _sloped(lambda place, key, row: (row - key).abs()),
        inputs.Shape(2, 4, 2, 1, 70, 32),
        Asked(alibi=True),
    ),
    "ALiBi by another distance": (
        _sloped(lambda place, key, row: 15 - key % 16),
        inputs.Shape(1, 2, 1, 5, 60, 32, causal=True),
        Asked(alibi=True),
    ),
    "soft cap of another number inside tanh": (_capped(0.8), SHORT, Asked(soft_cap=2.0)),
    "soft cap by another function than tanh: two caps": (
        _capped(2.0, lambda x: torch.tanh(torch.tanh(x))),
        SHORT,
        Asked(soft_cap=2.0),
    ),
    "o not rescaled but set to 0 when the maximum moves": (
        _reset,
        inputs.Shape(1, 4, 2, 1, 100, 32),
        None,
    ),
    "channels wrong: the row's log-sum-exp in place of the output": (
        wrong.stored(_lse_over_channel_0),
        SHORT,
        None,
    ),
}


@pytest.mark.parametrize("name", ASKED)
def test_what_differs_from_what_was_asked_for_is_told_before_what_explains_any_row(name):
    require_name(name, ASKED[name], SEED)


def _clipped_by_its_size(w):
    top = 1.3 * (w.q**2).mean(-1, keepdim=True).sqrt()
    return w.scores(q=w.q.clamp(-top, top))


def _unsigned(v):
    step = v.abs().amax((2, 3), keepdim=True) / 127
    whole = torch.round(v / step)
    return torch.where(whole < 0, whole + 256, whole) * step


def _mean_scale_of_the_page(v, size=16):
    """V has a scale for each key, and is read with the mean of those of its page."""
    each = v.abs().amax(-1, keepdim=True)
    means = [page.mean(2, keepdim=True).expand_as(page) for page in each.split(size, 2)]
    return v / each * torch.cat(means, 2)


def _by_turns(k):
    blocks = k.unflatten(-1, (-1, 16))
    return torch.stack(blocks.chunk(2, -1), -1).flatten(-2).flatten(-2)


def _prefix_by_a_factor(w):
    """The first 50 keys and values lack their scale."""
    by = torch.where(torch.arange(w.k.shape[2]) < 50, 0.6, 1.0)[:, None].double()
    return attend(w.scores(k=by * w.k), by * w.v, w.call.q.dtype)


def _four_bits(v):
    """Numbers that lie between two steps go either way."""
    eighths = torch.round(8 * v) / 8
    step = eighths.abs().amax(-1, keepdim=True) / 7
    ties = (eighths / step - (eighths / step).floor() - 0.5).abs() < 1e-9
    away = 1 + 1e-9 * torch.sign(torch.sin(37 * torch.arange(v.numel()).reshape(v.shape)))
    return torch.round(torch.where(ties, away, 1.0) * eighths / step) * step


ONE_FAMILY = {
    "keys left out, or another mask, read from elsewhere, that hides": (
        masks.ALL,
        wrong.scored(_drafts_alone),
    ),
    "Q clipped": (clips.ALL, wrong.scored(_clipped_by_its_size)),
    "V in int8 read without its sign": (blocks.ALL, wrong.valued(lambda w: _unsigned(w.v))),
    "V with scales of other blocks": (
        blocks.ALL,
        wrong.valued(lambda w: _mean_scale_of_the_page(w.v)),
    ),
    "channels of Q or K mixed up": (
        (channels.of_order,),
        wrong.scored(lambda w: w.scores(k=_by_turns(w.k))),
    ),
    "K and V by a factor": (scaled_ends.ALL, _prefix_by_a_factor),
}


def _alone(monkeypatch, families):
    """Leave out all other families, which take most of the time."""
    every = ways.every
    few = ("token", "head of a request")
    usual = lambda shape: (w for w in every(shape) if w.blocks.words in few)  # noqa: E731
    monkeypatch.setattr(ways, "every", usual)
    monkeypatch.setattr(names.whole_kernel, "_ROUNDS", ())
    monkeypatch.setattr(names.whole_kernel, "_LATE", (families,))
    monkeypatch.setattr(names.structure, "explain", lambda *_, **__: [])


@pytest.mark.parametrize("name", ONE_FAMILY)
def test_a_family_names_its_mistake(name, monkeypatch):
    families, bug = ONE_FAMILY[name]
    _alone(monkeypatch, families)
    require_name(name, (bug, SHORT, None), SEED)


@pytest.mark.parametrize("channels", [1, 24])
def test_a_factor_of_each_row_does_not_explain_one_channel(channels):
    sheet = dense_sheet(dense(), lambda sheet: 3 * sheet.truth)
    some = {name: getattr(sheet, name)[:, :channels] for name in ("out", "truth", "sigma")}
    found = [replace(sheet, channels=np.arange(channels), notes={}, shared={}, **some)]
    assert bool(list(begun.of_tiles(found, Search(found, "fp32").of_few))) == (channels > 1)


def test_numbers_between_two_steps_may_be_rounded_either_way(monkeypatch):
    _alone(monkeypatch, blocks.ALL)
    shape = inputs.Shape(1, 4, 2, 9, 70, 32, causal=True)
    call = inputs.call("normal", shape, "fp32", SEED)
    call = replace(call, v=torch.round(8 * call.v) / 8)
    found = runs.judged(call, wrong.run(wrong.valued(lambda w: _four_bits(w.v)), call))
    best = found.matches[0]
    assert best.name.startswith("V in int4"), found.summary()
    assert "ties go either way" in best.where

"""What is equal on the output is named together; what is more specific comes before it."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from labkernels.measure.strangers import inputs, runs, wrong
from labkernels.measure.strangers.inputs import Asked
from labkernels.measure.strangers.wrong import attend, keys_read, scored, stored, valued
from labkernels.numerics.truth.variant import VariantTensors
from labkernels.numerics.verdict.diagnosis import aliases, many_rows
from labkernels.numerics.verdict.diagnosis.one_row import Match
from labkernels.numerics.verdict.diagnosis.structure import scales, tiles
from labkernels.numerics.verdict.diagnosis.structure.gathered import Block
from tests.numerics.verdict.diagnosis.named import call_of
from tests.numerics.verdict.diagnosis.test_evidence import DIM, SIGMA, _problem, _sheet

SEED = 53
CAUSAL = inputs.Shape(2, 4, 2, 9, 90, 32, causal=True)
WHOLE = inputs.Shape(2, 4, 2, 9, 90, 32)
HEADS = inputs.Shape(2, 6, 2, 7, 60, 32, causal=True)
MASK = "another mask: keys that the mask hides"


def _judged(bug, shape, asked=None):
    call = call_of(shape, SEED)
    call = call if asked is None else replace(call, asked=asked)
    found = runs.judged(call, wrong.run(bug, call))
    assert found.matches, found.summary()
    names = found.matches[0].name.split(", or ")
    assert len(names) <= aliases.MOST
    return names


def _in_reverse(w):
    return torch.arange(w.k.shape[2]).flip(0)


def _twice(w):
    return torch.arange(w.k.shape[2]) // 2 * 2


@pytest.mark.parametrize(
    ("index", "shape", "masked"),
    [(_in_reverse, CAUSAL, True), (_in_reverse, WHOLE, False), (_twice, CAUSAL, False)],
    ids=["causal", "no mask", "keys twice"],
)
def test_keys_in_another_order_are_another_mask_where_each_is_read_once(index, shape, masked):
    if not masked and index is _in_reverse:  # the order of keys does not matter without a mask
        shape = replace(shape, causal=False)
        call = call_of(shape, SEED)
        out, right = (wrong.run(b, call) for b in (keys_read(index), wrong.right_output))
        assert torch.allclose(out, right, atol=1e-5)  # float32: some units of the last place
        return
    names = _judged(keys_read(index), shape)
    assert (MASK in names) == masked, names
    assert "read" in names[0]


def _pairs(k):
    return k.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)


def _means_off(k, tile=20):
    return torch.cat([part - part.mean(2, keepdim=True) for part in k.split(tile, 2)], 2)


def _less_first(k, tile=20):
    return torch.cat([part - part[:, :, :1] for part in k.split(tile, 2)], 2)


def _of_k(change):
    return scored(lambda w: w.scores(k=change(w.k)))


def _odd_tiles_of_k(w):
    odd = torch.arange(w.v.shape[2])[:, None] // 16 % 2 == 1
    return torch.where(odd, w.k, w.v)


def _of_sinks(change):
    return lambda w: attend(w.s, w.v, w.call.q.dtype, sinks=change(w.call.sinks.double()))


def _sloped(slopes, distance):
    def bug(w):
        place, key = wrong.places(w)
        s = w.q @ w.k.mT * w.call.scale - slopes(w) * distance(place - key)
        return s.masked_fill(w.hidden, -math.inf)

    return scored(bug)


def _own(w):
    return w.call.slopes.double()[:, None, None]


def _of_a_rank(w):
    head = torch.arange(w.q.shape[1]).double()[:, None, None]
    return 2.0 ** (-8 * (head + 1) / 16)


def _without(keys):
    def bug(w):
        return wrong.masked(w.s, torch.isin(torch.arange(w.s.shape[-1]), torch.tensor(keys)))

    return scored(bug)


def _tokens_modulo_64(w):
    b, _, n = w.k.shape[:3]
    token = (torch.arange(b)[:, None] * n + torch.arange(n)) % 64
    k, v = (x.transpose(0, 1).flatten(1, 2)[:, token].transpose(0, 1) for x in (w.k, w.v))
    return attend(w.scores(k=k), v, w.call.q.dtype)


def _added_to_the_tile_before(w):
    key = torch.arange(w.s.shape[-1])
    before = w.s[..., (key - 16).clamp(min=0)]
    return w.s + torch.where(key // 16 % 2 == 1, before.clamp(min=-1e30), 0.0)


def _half_of_the_query_late(w):
    early = w.scores(q=torch.where(torch.arange(w.q.shape[-1]) < 16, w.q, 0.0))
    return torch.where(torch.arange(w.s.shape[-1]) < 32, early, w.s)


def _scales_of_the_next_head(w):
    size = w.k.abs().amax(2, keepdim=True)
    return w.scores(k=w.k * size.roll(w.call.group, 1) / size)


def _at_least(w):
    p = torch.exp(w.s - w.s.amax(-1, keepdim=True)).clamp(min=0.02)
    return (p @ w.v / p.sum(-1, keepdim=True)).to(w.call.q.dtype)


def _in_eight_bits(w):
    s = (w.q @ w.k.mT * w.call.scale).clamp(-1, 1)
    return (torch.round(s * 127) / 127).masked_fill(w.hidden, -math.inf)


def _e4m3_of_the_next_head(w):
    size = w.v.abs().amax((2, 3), keepdim=True)
    kept = (w.v / size * 448).float().to(torch.float8_e4m3fn).double() / 448
    return kept * size.roll(w.call.group, 1)


SINKS, SLOPES = Asked(sinks=True), Asked(alibi=True)
CASES = {
    "pairs of K's channels": (_of_k(_pairs), CAUSAL, None, ["channels of Q or K mixed up"]),
    "means of tiles of 20": (_of_k(_means_off), CAUSAL, None, ["K less its mean"]),
    "first keys of tiles": (_of_k(_less_first), CAUSAL, None, ["K less its tile's first key"]),
    "scale": (
        scored(lambda w: 1.3 * w.s),
        CAUSAL,
        None,
        ["wrong scale", "Q or K by a factor"],
    ),
    "V from K": (valued(_odd_tiles_of_k), CAUSAL, None, ["V is K: K read for V"]),
    "sinks of a rank": (
        _of_sinks(lambda x: x.roll(3)),
        HEADS,
        SINKS,
        ["sinks of another head"],
    ),
    "sinks squared": (_of_sinks(lambda x: x * x), HEADS, SINKS, ["sinks of other numbers"]),
    "distance at most 31": (
        _sloped(_own, lambda d: d.clamp(max=31)),
        HEADS,
        SLOPES,
        ["ALiBi by another distance"],
    ),
    "slopes of 16 heads": (
        _sloped(_of_a_rank, lambda d: d),
        HEADS,
        SLOPES,
        ["ALiBi slopes of another head"],
    ),
    "three keys": (
        _without([7, 8, 9]),
        CAUSAL,
        None,
        ["keys left out", "another mask that hides them"],
    ),
    "a constant": (
        stored(lambda w, out: out + 0.25),
        CAUSAL,
        None,
        ["a constant is added", "a constant is added to V, as a zero point is"],
    ),
    "elements": (
        stored(lambda w, out: out.flatten().roll(1).reshape(out.shape)),
        CAUSAL,
        None,
        ["out stored some elements off", "channels mixed up with those of the row beside"],
    ),
    "tokens": (
        _tokens_modulo_64,
        CAUSAL,
        None,
        ["K and V read from other tokens, across requests", "K and V of another request"],
    ),
    "tile before": (
        scored(_added_to_the_tile_before),
        CAUSAL,
        None,
        ["K is a sum of several keys'", "scores added to those of other keys"],
    ),
    "half of the query": (
        scored(_half_of_the_query_late),
        CAUSAL,
        None,
        ["channels of Q or K left out"],
    ),
    "scales": (
        scored(_scales_of_the_next_head),
        CAUSAL,
        None,
        ["K with scales of another head"],
    ),
    "exponents": (
        _at_least,
        CAUSAL,
        None,
        ["exponents clamped, those of hidden keys too"],
    ),
    "steps": (
        scored(_in_eight_bits),
        CAUSAL,
        None,
        ["scores clamped, both ways, in few bits"],
    ),
    "scale of e4m3": (
        valued(_e4m3_of_the_next_head),
        CAUSAL,
        None,
        ["V in e4m3 with a wrong scale"],
    ),
    "e4m3": (
        stored(lambda w, out: out.to(torch.float8_e4m3fn).to(out.dtype)),
        CAUSAL,
        None,
        ["out was rounded to e4m3", "partial outputs in e4m3, of one split"],
    ),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("case", CASES)
def test_a_bug_has_the_names_of_all_that_makes_its_outputs(case):
    bug, shape, asked, names = CASES[case]
    assert _judged(bug, shape, asked) == names


@pytest.mark.parametrize(
    ("asked", "name", "then"),
    [
        ({"alibi": np.ones(1)}, "ALiBi{}, another for each head", "ALiBi slopes of other numbers"),
        ({"alibi": np.ones(1)}, "a bias that falls as ALiBi's{}", "ALiBi slopes of other numbers"),
        ({"soft_cap": 4.0}, "soft cap{}", "soft cap by another function than tanh: two caps"),
        ({"window_left": 40}, "window{}", "another window"),
    ],
    ids=["slopes", "a bias", "cap", "window"],
)
def test_what_a_call_asks_for_is_not_named_as_not_asked_for(asked, name, then):
    name = name.format(" that was not asked for")
    plain = _problem()
    asks = replace(plain, variant=VariantTensors(**asked))
    match = Match(name, "all rows", 1.0, 9.0)
    assert aliases.named(plain, [match])[0].name.startswith(name)
    assert aliases.named(asks, [match])[0].name.startswith(then)


def test_a_scale_of_some_keys_is_not_one_of_the_query():
    some = Match("wrong scale", "scores times 1.3; odd tiles of 32 keys", 1.0, 9.0)
    assert aliases.named(None, [some])[0].name == "wrong scale, or K by a factor"


@pytest.mark.parametrize(
    ("name", "where", "other"),
    [
        ("partial outputs of another row", "split 1 of 4", "another row's output in some splits"),
        ("RoPE some places off", "q +64 places; of keys from 64 on", "RoPE of K by wrong places"),
        ("RoPE some places off", "q +64 places", None),
        ("l accumulated in bf16", "after every key", "denominator of each row in bf16"),
        ("GQA heads interleaved", "", "K and V of another head"),
        ("K read as 0", "keys 3 to 9", "scores of these keys are 0"),
        ("K read as 0", "", None),
        ("V with a constant added", "0.2", "V with its zero point not taken off"),
        ("V by a factor for each block", "keys 0 to 7", "V with scales of other blocks"),
        ("splits merged by l alone", "3 splits", "splits merged with wrong weights"),
        ("splits merged unweighted", "3 splits", "splits merged with wrong weights"),
        ("mixed log base at the merge", "", "splits merged with wrong weights"),
        ("last split counted twice at the merge", "3 splits", "keys counted twice"),
        ("Q read with two registers swapped", "", "Q of another row, in some channels"),
        ("K read with two registers swapped", "", "channels of K read from other keys"),
    ],
)
def test_a_place_tells_what_else_a_mistake_is(name, where, other):
    found = aliases.named(_problem(), [Match(name, where, 1.0, 9.0)])[0].name
    assert found == (f"{name}, or {other}" if other else name)


def test_another_word_comes_before_the_same_word_of_another_tensor():
    names = ["keys left out", "V read from other keys", "K and V read from other keys"]
    match = Match(", or ".join(names), "the first key", 1.0, 9.0)
    found = aliases.named(replace(_problem(), causal=True), [match])
    left = [names[0], names[2], "another mask that hides them"]  # K and V are likelier than V alone
    assert found[0].name.split(", or ") == left


def test_a_constant_is_not_one_of_v_where_a_sink_has_weight():
    asks = replace(_problem(), variant=VariantTensors(sinks=np.zeros(1)))
    constant = Match("a constant is added", "times 0.25", 1.0, 9.0)
    assert aliases.named(asks, [constant]) == [constant]


def test_a_norm_of_keys_that_are_equally_long_is_a_scale_too():
    call = call_of(CAUSAL, SEED)
    call = replace(call, k=3 * torch.nn.functional.normalize(call.k, dim=-1))
    late = scored(lambda w: torch.where(torch.arange(w.s.shape[-1]) >= 48, w.s / 3, w.s))
    names = runs.judged(call, wrong.run(late, call)).matches[0].name.split(", or ")
    assert set(names) == {"K divided by its length", "wrong scale", "K by a factor"}


def test_a_list_of_names_stays_as_short_as_a_reader_can_use():
    three = Match("wrong scale, or a, or b", "all rows", 1.0, 9.0)
    assert aliases.named(None, [three]) == [three]
    assert aliases.named(None, []) == []


def _factors(sheet):
    return sheet.truth * np.random.default_rng(8).uniform(0.5, 2, (len(sheet.tokens), 1))


def _in_one_channel(sheet):
    """Return rows that are 0 but for a channel, and have another number there."""
    right = sheet.truth * (np.arange(DIM) == 3)
    return right, right * np.random.default_rng(8).uniform(0.5, 2, (len(right), 1))


@pytest.mark.parametrize("family", [tiles.of_rows, tiles.of_lanes])
def test_a_factor_of_a_row_shows_in_several_channels_or_has_no_name(family):
    sheet = _sheet(_problem(), _factors)
    found = list(family([Block(sheet, sheet.sigma)], 1e3))
    assert [each.name for each in found] == [
        "denominator of each row wrong: the row by a factor of its own"
    ]
    truth, out = _in_one_channel(sheet)
    lone = replace(sheet, truth=truth, out=out, notes={})
    assert not [each for each in family([Block(lone, lone.sigma)], 1e3) if "denom" in each.name]


def _scaled(sheet):
    times = np.random.default_rng(9).uniform(0.5, 2, (len(sheet.tokens), 1))
    return sheet.attend(times * sheet.scores)


@pytest.mark.parametrize(("rank", "named"), [(DIM, True), (1, False)])
def test_a_scale_of_each_row_needs_rows_that_move_in_several_directions(rank, named):
    sheet = _sheet(_problem(rank), _scaled)
    found = list(scales.of_scales([Block(sheet, sheet.sigma)], 1e3))
    assert [each.name.startswith("wrong scale, another") for each in found] == [True] * named


@pytest.mark.parametrize(("levels", "named"), [(7, True), (1, False)], ids=["int4", "one number"])
def test_steps_of_an_integer_need_numbers_between_0_and_the_largest(levels, named):
    rng = np.random.default_rng(2)
    right = rng.integers(-levels, levels + 1, (40, 16)) / 7
    right[:, 0] = levels / 7
    noisy = right + 0.3 * levels / 49 * rng.standard_normal(right.shape)
    sigma = np.full(right.shape, SIGMA)
    found = many_rows._stepped(right, noisy, sigma, "fp32")
    assert [match.name for match in found] == ["out was rounded to steps, as int4"] * named


def test_factors_that_rows_of_a_head_share_are_its_own():
    bug = valued(lambda w: w.v * torch.tensor([0.6, 0.6, 1.5, 1.5])[:, None, None].double())
    names = ["factor for each head", "V or the output by a factor for each head"]
    assert _judged(bug, CAUSAL) == names

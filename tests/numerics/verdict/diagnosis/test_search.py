"""The search for a name: what ends it early, and what bounds its work on long contexts."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from labkernels.measure.strangers import inputs, runs, wrong
from labkernels.numerics.truth import oracle
from labkernels.numerics.truth.problem import Problem
from labkernels.numerics.truth.variant import VariantTensors
from labkernels.numerics.verdict.diagnosis import aliases, many_rows, names
from labkernels.numerics.verdict.diagnosis.one_row import Match, Row
from labkernels.numerics.verdict.diagnosis.structure import tiles, weights
from labkernels.numerics.verdict.diagnosis.structure.gathered import Block
from labkernels.numerics.verdict.diagnosis.whole_kernel import fitted, sheets
from labkernels.numerics.verdict.diagnosis.whole_kernel.keys import some_keys
from labkernels.numerics.verdict.diagnosis.whole_kernel.one_rule import Mistake
from labkernels.numerics.verdict.diagnosis.whole_kernel.search import Search
from labkernels.numerics.verdict.diagnosis.whole_kernel.sums import chains, precision, states
from labkernels.numerics.verdict.matched_filters import DIRECTIONS
from labkernels.policy import NumericPolicy
from tests.numerics.verdict.diagnosis.named import call_of
from tests.numerics.verdict.diagnosis.test_evidence import DIM, KEYS, SIGMA, _by_tiles, _sheet
from tests.numerics.verdict.diagnosis.test_evidence import _problem as _dense

RAGGED = (inputs.Shape(2, 6, 3, 21, 53, 40, causal=True), inputs.Shape(3, 8, 2, 1, 171, 48))


@pytest.fixture
def no_readings(monkeypatch):
    """Fail where the readings of the grammar, or the fits of the structure, are tried."""

    def tried(*_, **__):
        raise AssertionError("hundreds of readings are tried for a mistake of one number")

    monkeypatch.setattr(names.whole_kernel.grammar, "Screen", tried)
    monkeypatch.setattr(names.structure, "explain", tried)


@pytest.mark.parametrize("shape", RAGGED, ids=["causal", "decode"])
def test_a_factor_of_every_output_ends_the_search(shape, no_readings):
    call = inputs.call("normal", shape, "bf16", 11)
    factor = wrong.stored(lambda _, out: (out.double() * 1.01).to(out.dtype))
    found = runs.judged(call, wrong.run(factor, call))
    either = "V or the output by a factor, or the denominator by a factor"
    assert found.matches[0].name == either, found.summary()
    assert "times 1.0" in found.matches[0].where


@pytest.mark.parametrize("shape", RAGGED, ids=["causal", "decode"])
def test_the_value_of_any_key_that_is_added_ends_the_search(shape, no_readings):
    call = inputs.call("normal", shape, "bf16", 12)
    added = wrong.stored(lambda w, out: (out.double() + 0.03 * w.v[:, :, 7:8]).to(w.call.q.dtype))
    best = runs.judged(call, wrong.run(added, call)).matches[0]
    assert best.name == "the value of key 7 is added"
    assert float(best.where.split(";")[0].removeprefix("times ")) == pytest.approx(0.03, rel=0.02)


def test_one_key_in_place_of_the_output_does_not_hide_the_scale_that_leaves_it():
    call = inputs.call("peaky", inputs.Shape(2, 4, 4, 24, 24, 40, causal=True), "bf16", 3)
    sharp = wrong.scored(lambda w: 40**0.5 * w.s)
    found = runs.judged(call, wrong.run(sharp, call))
    assert "scale" in found.matches[0].name, found.summary()


def test_runs_of_more_keys_than_the_coarse_ends_are_found_to_the_key():
    call = inputs.call("normal", inputs.Shape(1, 2, 1, 1, 701, 32), "fp16", 5)
    lost = wrong.scored(lambda w: wrong.masked(w.s, _between(w, 301, 417)))
    best = runs.judged(call, wrong.run(lost, call)).matches[0]
    assert best.name.startswith("keys left out")
    assert "keys 301 to 416" in best.where


def test_a_run_of_keys_ends_with_the_last_key():
    call = inputs.call("normal", inputs.Shape(1, 2, 1, 1, 700, 32), "bf16", 5)
    without = wrong.valued(lambda w: w.v * (wrong.keys_of(w) < 688)[:, None])
    best = runs.judged(call, wrong.run(without, call)).matches[0]
    assert best.name == "V read as 0, or the output of a split lost"
    assert "keys 688 to 699" in best.where


def _between(w, first, last):
    key = wrong.places(w)[1]
    return (key >= first) & (key < last)


def _problem(rng, causal=True):
    """Two requests of 1,030 and 1,100 keys, of which one asks for its last 600 tokens alone."""
    q = rng.standard_normal((1700, 1, 8))
    k, v = (rng.standard_normal((2130, 1, 8)) for _ in range(2))
    ends = {"cu_seqlens_q": np.array([0, 600, 1700]), "causal": causal}
    return Problem.packed(q, k, v, [0, 1030, 2130], scale=8**-0.5, **ends)


def test_the_start_of_long_requests_is_a_problem_of_its_own():
    problem = _problem(np.random.default_rng(0))
    truth, _ = oracle.attention(problem)
    bad = np.ones(truth.shape[:2])
    given = problem, truth, truth, np.ones(truth.shape), bad, "fp32"
    start = sheets.of_start(*given)
    assert {sheet.kv_len for sheet in start} == {512}
    for sheet in start:
        np.testing.assert_allclose(sheet.attend(sheet.scores), sheet.truth, rtol=1e-12)


@pytest.mark.parametrize("reason", ["right at first", "not causal"])
def test_no_start_where_the_errors_come_later_or_all_keys_are_seen(reason):
    problem = _problem(np.random.default_rng(1), causal=reason != "not causal")
    bad = np.ones(problem.out_shape[:2])
    if reason == "right at first":
        bad[600:1400] = 0.0
        bad[:300] = 0.0
    truth = np.zeros(problem.out_shape)
    assert sheets.of_start(problem, truth, truth, truth + 1, bad, "fp32") == []


def test_a_candidate_for_each_head_does_not_end_the_search_and_one_number_does():
    explain = names.whole_kernel
    one, each = (
        explain.Mistake("", "", lambda _: None, vague=True, settles=up_to, for_each=not up_to)
        for up_to in (1.15, 0.0)
    )
    assert explain._settles(1.0, one, 16.0)
    assert not explain._settles(1.0, one, 4.0)
    assert not explain._settles(1.2, one, 1e6)
    assert not explain._settles(1.0, each, 16.0)


def _read_as_bf16(w):
    v = w.v.half().contiguous().view(torch.bfloat16).double()
    return wrong.attend(w.s, v, w.call.q.dtype)


def test_an_output_smaller_than_the_errors_of_right_ones_is_not_any_small_number():
    call = inputs.call("normal", inputs.Shape(1, 2, 1, 1, 24, 16), "fp16", 7)
    call = replace(call, v=0.6 * call.v.tanh())
    found = runs.judged(call, wrong.run(_read_as_bf16, call))
    assert found.matches, found.summary()
    assert found.matches[0].name.startswith("V read as bf16"), found.summary()


@pytest.mark.parametrize("name", ["K", "Q and K", "K and V"])
def test_a_soft_cap_acts_on_rounded_operands_too(name):
    rng = np.random.default_rng(8)
    q, k, v = (np.rint(4 * rng.standard_normal((n, 1, DIM))) / 4 for n in (12, KEYS, KEYS))
    ends = {"cu_seqlens_q": [0, 12], "causal": False, "variant": VariantTensors(soft_cap=1.0)}
    sheet = _sheet(Problem.packed(q, k, v, [0, KEYS], scale=DIM**-0.5, **ends), lambda s: s.truth)
    sheet = replace(sheet, p_format="fp32")
    found = next(m for m in precision.operands([sheet]) if m.name == f"{name} in fp16")
    # quarters are numbers of fp16, so that the rounding changes nothing
    np.testing.assert_allclose(found.outputs(sheet), sheet.truth, rtol=1e-12)


def _skipped(sheet):
    """Skip tiles of 8 keys whose largest weight is below a half of the running maximum."""
    top, kept = -np.inf, np.empty_like(sheet.weights)
    for first in range(0, sheet.kv_len, 8):
        p = sheet.weights[:, first : first + 8]
        top = np.maximum(top, p.max(1, keepdims=True))
        kept[:, first : first + 8] = np.where(p.max(1, keepdims=True) < top / 2, 0.0, p)
    return kept @ sheet.v / kept.sum(1, keepdims=True)


def test_tiles_below_a_share_of_the_running_maximum_are_skipped():
    sheet = _sheet(_dense(), _skipped)
    search = Search([sheet], "fp32")
    search.try_all([states.of_skips], ())
    assert search.before > 100
    assert "tiles of 8 keys below 0.5 of the running maximum" in search.kept[0][1].where
    rivals = names.whole_kernel._RIVALS[chains.OTHER_TILES]
    assert states.of_skips in rivals


@pytest.mark.parametrize(
    ("counts", "name"),
    [
        ({(0, 1), (1, 0)}, "another mask: keys that the mask hides, and keys left out"),
        ({(0, 2), (1, 0), (1, 3)}, "keys read from elsewhere, hidden ones too, some twice"),
    ],
)
def test_no_mask_shows_a_key_twice(counts, name):
    assert weights._name(counts, "p") == name


@pytest.mark.parametrize("times", [40, 41])
def test_a_sum_of_v_is_a_softmax_over_another_axis(times):
    mean = Match("the mean of V in place of the output", f"times {times}; all rows", 1.0, 9.0)
    found = aliases.named(_dense(), [mean])
    assert ("softmax over another axis" in found[0].name) == (times == KEYS)


@pytest.mark.parametrize(("noise", "named"), [(1.0, True), (1.35, False)])
def test_numbers_of_each_row_must_leave_no_more_than_right_elements_have(noise, named):
    sheet = _sheet(_dense(), _by_tiles, noise)
    assert bool(list(tiles.of_rows([Block(sheet, sheet.sigma)], 100.0))) == named


@pytest.mark.parametrize(("more", "name"), [(1.1, "P truncated, or scale"), (0.9, "P truncated")])
def test_a_cut_of_p_is_named_with_a_direction_that_explains_more(more, name):
    shape, n = (1, 1), 10_000
    along = np.zeros((len(DIRECTIONS), *shape))
    power = np.ones((len(DIRECTIONS), *shape))
    cut, scale = (DIRECTIONS.index(each) for each in ("P truncated", "scale"))
    along[cut], along[scale] = 100.0, 100.0 * more
    power[cut] = power[scale] = 125.0  # beta 0.8 of the predicted cut
    filters = SimpleNamespace(along=along, power=power, variance=power)
    problem = replace(_dense(), causal=False)
    error, sigma = np.full((1, 1, n), 1.005), np.ones((1, 1, n))
    tests = {"P truncated by all", "scale by all"}
    found = many_rows.of_filters(problem, error, sigma, tests, filters)
    assert found[0].name == name


def test_a_run_of_keys_begins_where_all_rows_say():
    rng, first = np.random.default_rng(4), 20
    q, k, v = (rng.standard_normal((n, 1, DIM)) for n in (12, KEYS, KEYS))
    k[25], v[25] = 2 * q[0], 4 * v[25]  # the first row is the worst
    k[first - 1] = -6 * q[0]  # and gives the key before the run no weight
    ends = {"cu_seqlens_q": [0, 12], "causal": False}
    problem = Problem.packed(q, k, v, [0, KEYS], scale=DIM**-0.5, **ends)

    def some(sheet):
        times = np.where(np.arange(sheet.kv_len) < first, 1.0, 2.0)
        return sheet.attend(sheet.scores, times[:, None] * sheet.v)

    sheet = _sheet(problem, some)
    twice = Mistake("V", "", lambda s: s.attend(s.scores, 2 * s.v))
    found = list(some_keys.of_mistakes([sheet], Search([sheet], "fp32").of_few, [twice]))
    assert found[0].where == f"of keys from {first} on alone"


@pytest.mark.parametrize("where", ["only heads 4 to 5", "all rows"])
def test_sinks_of_some_heads_may_be_any_numbers(where):
    found = aliases.named(None, [Match("sinks of another head", where, 1.0, 9.0)])
    assert ("sinks of other numbers" in found[0].name) == where.startswith("only")


def test_rows_of_other_queries_may_have_their_weights_and_not_their_output():
    call = call_of(inputs.Shape(1, 2, 2, 30, 30, 32, causal=True), 9)
    moved = wrong.stored(lambda _, out: out.roll(-8, 2))
    found = runs.judged(call, wrong.run(moved, call))
    name = "another row's output, or weights are those of another row"
    assert found.matches[0].name == name, found.summary()


def test_values_at_an_offset_are_weights_at_an_offset():
    late = Match("V read at an offset, as of the tile before or behind", "", 1.0, 9.0)
    assert "weights are those of other keys" in aliases.named(None, [late])[0].name


def test_a_query_may_have_fewer_channels_than_the_output_that_it_is_added_to():
    call = call_of(inputs.Shape(1, 4, 2, 9, 40, 16, causal=True, v_dim=24), 10)
    added = wrong.stored(lambda w, out: out + 0.1 * torch.nn.functional.pad(w.q, (0, 8)).float())
    best = runs.judged(call, wrong.run(added, call)).matches[0]
    assert (best.name, best.where[:9]) == ("the query is added", "times 0.1")


@pytest.mark.parametrize("causal", [False, True])
def test_a_window_of_rows_that_see_the_same_keys_is_a_run_of_keys_left_out(causal):
    last = Match("window that was not asked for", "the last 39 keys", 1.0, 9.0)
    found = aliases.named(replace(_dense(), causal=causal), [last])
    assert ("keys left out" in found[0].name) != causal


@pytest.mark.parametrize("times", [0.0, 0.5])
def test_no_denominator_makes_a_row_0(times):
    problem = _dense()
    truth, _ = oracle.attention(problem)
    sigma = np.full(truth.shape, SIGMA)
    policy = NumericPolicy("fp32", None, "mufu", out="fp32")
    rows = [
        Row(problem, policy, (token, 0), times * truth[token, 0], sigma[token, 0], truth)
        for token in range(4)
    ]
    found = many_rows.of_factor(rows)
    assert [each.name for each in found] == ["denominator of a row"] * (times > 0)


def _cut_to_bf16(sheet):
    p = np.ldexp(np.trunc(np.ldexp(np.frexp(sheet.weights)[0], 8)), np.frexp(sheet.weights)[1] - 8)
    return p @ sheet.v / sheet.weights.sum(1, keepdims=True)


def _less_by_a_fixed_part(sheet):
    exact = sheet.weights == 1
    spacing = np.where(exact, 0.0, np.ldexp(1.0, np.frexp(sheet.weights)[1] - 8))
    return (sheet.weights - spacing / 4) @ sheet.v / sheet.weights.sum(1, keepdims=True)


@pytest.mark.parametrize(
    ("change", "named"), [(_cut_to_bf16, True), (_less_by_a_fixed_part, False)]
)
def test_a_cut_of_p_to_fewer_bits_leaves_its_random_part(change, named):
    sheet = replace(_sheet(_dense(), change, noise=0.1), p_format="fp16", notes={})
    found = list(fitted.of_truncation([sheet], Search([sheet], "fp32").of_few))
    assert any("to bf16" in each.where for each in found) == named, found

"""A name needs equations: what explains any errors, or follows roundings alone, names nothing."""

import math

import numpy as np
import pytest
import torch

from labkernels.measure.strangers import inputs, runs, wrong
from labkernels.numerics.truth import oracle
from labkernels.numerics.truth.problem import Problem
from labkernels.numerics.verdict.diagnosis.outputs import added, stored
from labkernels.numerics.verdict.diagnosis.structure import mixtures, tiles
from labkernels.numerics.verdict.diagnosis.structure.gathered import Block
from labkernels.numerics.verdict.diagnosis.whole_kernel import sheets
from labkernels.numerics.verdict.diagnosis.whole_kernel.one_rule import Mistake
from labkernels.numerics.verdict.diagnosis.whole_kernel.search import Search
from labkernels.numerics.verdict.diagnosis.whole_kernel.sums import chains

KEYS, DIM, SIGMA = 40, 24, 1e-4


def _problem(rank: int = DIM, keys: int = KEYS):
    """Return 12 queries of one head, without a mask; V has as many directions as asked for."""
    rng = np.random.default_rng(rank)
    q, k = rng.standard_normal((12, 1, DIM)), rng.standard_normal((keys, 1, DIM))
    v = rng.standard_normal((keys, 1, rank)) @ rng.standard_normal((rank, DIM))
    return Problem.packed(q, k, v, [0, keys], scale=DIM**-0.5, cu_seqlens_q=[0, 12], causal=False)


def _sheet(problem: Problem, change, noise: float = 1.0):
    """Return the rows with other weights: change(weights [R, L]) gives them, or the rows."""
    truth, _ = oracle.attention(problem)
    sigma, bad = np.full(truth.shape, SIGMA), np.ones(truth.shape[:2])
    right = sheets.of_rows(problem, truth, truth, sigma, bad, "bf16")[0]
    rows = change(right)
    rng = np.random.default_rng(5)
    out = np.empty(truth.shape)
    out[right.tokens, right.heads] = rows + noise * SIGMA * rng.standard_normal(rows.shape)
    return sheets.of_rows(problem, out, truth, sigma, bad, "bf16")[0]


def _by_tiles(sheet):
    """Give each tile of 8 keys another factor in each row, in both sums."""
    times = np.random.default_rng(3).uniform(0.3, 3.0, (len(sheet.tokens), KEYS // 8))
    p = sheet.weights * times.repeat(8, 1)
    return p @ sheet.v / p.sum(1, keepdims=True)


@pytest.mark.parametrize(("rank", "reach"), [(2, 2), (5, 5), (DIM, DIM)])
def test_a_row_has_as_many_equations_as_its_values_have_directions(rank, reach):
    sheet = _sheet(_problem(rank), lambda s: s.truth)
    assert set(sheet.reach) == {reach}
    few = np.zeros(KEYS)
    few[:3] = 1 / 3
    shown = sheets.directions(few, sheet.v - sheet.truth[0], sheet.sigma[0])
    assert shown == min(rank, 3)


@pytest.mark.parametrize(("rank", "named"), [(DIM, True), (3, False)])
def test_weights_of_tiles_that_explain_any_output_have_no_name(rank, named):
    sheet = _sheet(_problem(rank), _by_tiles)
    found = list(tiles.of_rows([Block(sheet, sheet.sigma)], 100.0))
    assert bool(found) == named
    assert all("splits merged with wrong weights" in each.name for each in found)
    misfit = Search([sheet], "fp32").of_few
    assert bool(list(chains.of_weights([sheet], misfit))) == named


def _dropped(sheet, times: float):
    p = sheet.weights / sheet.weights.sum(1, keepdims=True)
    kept = np.random.default_rng(4).random(p.shape) > 0.15
    return times * kept * p @ sheet.v


@pytest.mark.parametrize(
    ("times", "name"),
    [(1 / 0.85, "weights of keys dropped, others in each row"), (1.0, "V read as 0")],
)
def test_weights_that_are_lost_at_random_have_a_name_where_a_row_has_few_keys(times, name):
    sheet = _sheet(_problem(keys=11), lambda s: _dropped(s, times))
    found = list(tiles.of_dropped([Block(sheet, sheet.sigma)], 1e3))
    assert found[0].name.startswith(name), found
    many = _sheet(_problem(), lambda s: _dropped(s, times))  # more keys than half of the channels
    assert not list(tiles.of_dropped([Block(many, many.sigma)], 1e3))


def test_what_follows_roundings_must_explain_more_than_right_arithmetic_that_does():
    problem = _problem()
    sheet = _sheet(problem, lambda s: s.truth + 4 * SIGMA)
    follows = lambda s: s.truth + 4 * SIGMA  # noqa: E731
    search = Search([sheet], "fp32")
    search.judge(Mistake("o accumulated", "", follows, precision=True, control=follows))
    assert not search.kept
    search.judge(Mistake("o accumulated", "", follows, precision=True, control=lambda s: s.truth))
    assert [mistake.name for _, mistake in search.kept] == ["o accumulated"]


def test_numbers_near_0_are_no_multiples_of_a_step():
    rng = np.random.default_rng(0)
    right = 0.1 * rng.standard_normal((8, 16))
    given = 1e-9 * rng.standard_normal((8, 16))
    spread = np.full(right.shape, 1e-4)
    names = [name for name, *_ in stored._functions(given, right, spread)]
    assert "out was rounded to steps" not in names
    names = [name for name, *_ in stored._functions(np.rint(8 * right) / 8, right, spread)]
    assert "out was rounded to steps" in names


@pytest.mark.parametrize(
    ("dtype", "other"), [("bf16", torch.float16), ("fp16", torch.bfloat16)], ids=["bf16", "fp16"]
)
def test_the_bits_of_the_other_format_are_read(dtype, other):
    call = inputs.call("normal", inputs.SHAPES[5], dtype, 31)
    bits = wrong.stored(lambda w, out: out.to(other).view(out.dtype))
    best = runs.judged(call, wrong.run(bits, call)).matches[0]
    assert best.name == "out has the bits of the other 16-bit format"
    assert f"read as {dtype}" in best.where
    assert best.rms <= 1.5 < best.was  # as in the module: what rounding may leave


def test_scales_of_channels_may_differ_from_head_to_head_and_sample_to_sample():
    rng = np.random.default_rng(6)
    n, heads, dim = 24, 2, 8
    q, k, v = (rng.standard_normal((2 * n, heads, dim)) for _ in range(3))
    ends = [0, n, 2 * n]
    problem = Problem.packed(q, k, v, ends, scale=dim**-0.5, cu_seqlens_q=ends, causal=False)
    truth, _ = oracle.attention(problem)
    scale = np.repeat(rng.uniform(0.5, 2, (2, heads, dim)), n, 0)
    sigma, bad = np.full(truth.shape, SIGMA), np.ones(truth.shape[:2], bool)
    given = truth * scale + SIGMA * rng.standard_normal(truth.shape)
    found = added.of_factors(problem, given, truth, sigma, bad, "fp32")
    assert found[0].name == "factor for each channel of each KV head and sample", found
    assert math.isclose(float(found[0].where[6:].split(",")[0]), scale[0, 0, 0], rel_tol=0.01)


@pytest.mark.parametrize(("rank", "named"), [(DIM, True), (2, False)])
def test_sums_of_rows_that_explain_any_output_have_no_name(rank, named):
    rng = np.random.default_rng(rank)
    asked, lens = np.array([1] * 7 + [2]), np.arange(0, 9 * KEYS, KEYS)
    q, k = rng.standard_normal((9, 2, DIM)), rng.standard_normal((8 * KEYS, 1, DIM))
    v = rng.standard_normal((8 * KEYS, 1, rank)) @ rng.standard_normal((rank, DIM))
    ends = {"cu_seqlens_q": np.append(0, np.cumsum(asked)), "causal": False}
    problem = Problem.packed(q, k, v, lens, scale=DIM**-0.5, **ends)
    truth, _ = oracle.attention(problem)
    sigma, bad = np.full(truth.shape, SIGMA), np.ones(truth.shape[:2], bool)
    given = truth + 0.3 * truth[:, ::-1]
    if not named:  # any weights at all: in two directions two rows give any third one
        given = np.stack([rng.dirichlet(np.ones(KEYS), 2) @ v[:KEYS, 0] for _ in range(9)])
    found = list(mixtures.of_rows(problem, given, truth, sigma, bad, "fp32"))
    assert [each.name for each in found] == ["the output of head +1 is added"] * named

"""The newest set: its right outputs are right, and each of its bugs changes what it should."""

import functools

import pytest
import torch

from labkernels.experiments.accuracy import strangers as experiment
from labkernels.measure.strangers import inputs, right, split, wrong
from tests.strangers.the_set import SET

SEED = split.FIRST_HELD_OUT_SEED
# A right output is within one unit in the last place of the largest of its row: two half units.
# A bug that shows is above four, since nothing that is right comes near.
SHOWN_HALF_UNITS = 4


def in_half_units(out, truth):
    """Return each element's error in half units of the largest of its row; NaN counts as inf."""
    top = truth.double().abs().amax(-1, keepdim=True)
    error = (out.double() - truth.double()).abs() / (torch.finfo(out.dtype).eps / 2 * top)
    return error.nan_to_num(nan=torch.inf, posinf=torch.inf)


@functools.cache
def work(number: int, asked: inputs.Asked) -> tuple[wrong.Work, torch.Tensor]:
    """Return the work of a shape, in fp16, with what is asked for, and its right output."""
    family = list(SET.families)[(5 * number + 1) % len(SET.families)]
    of = wrong.Work.of(inputs.asking(SET.call(family, "fp16", SEED + number), asked))
    return of, wrong.right_output(of)


@pytest.mark.parametrize("bug", SET.wrong)
def test_a_bug_shows_on_most_shapes_or_leaves_every_bit(bug):
    shown = 0
    for number in range(len(SET.shapes)):
        of, good = work(number, SET.asked.get(bug, inputs.Asked()))
        out = SET.wrong[bug][0](of)
        assert (out.shape, out.dtype) == (good.shape, good.dtype)
        largest = float(in_half_units(out, good).max())
        assert largest == 0 or largest > SHOWN_HALF_UNITS, (number, largest)
        shown += largest > 0
    assert shown > len(SET.shapes) / 2
    parts = {part for *_, part in experiment.cases(bug, SEED, SET)}
    assert "all" in parts  # a recording judges the bug in all rows once


def test_every_bug_takes_a_few_keys_and_any_channels():
    for queries, keys, dim in ((1, 1, 64), (1, 3, 64), (5, 20, 20), (3, 40, 7)):
        shape = inputs.Shape(1, 2, 1, queries, keys, dim)
        call = inputs.drawn_call(inputs.FAMILIES["normal"], [keys], shape, "bf16")
        for name, (make, _) in SET.wrong.items():
            out = wrong.run(make, inputs.asking(call, SET.asked.get(name, inputs.Asked())))
            assert (out.shape, out.dtype) == (call.q.shape, call.q.dtype), name


@pytest.mark.parametrize("kind", SET.right)
def test_a_right_implementation_is_right(kind):
    for number, family in enumerate(SET.families):
        call = SET.call(family, "fp32", SEED + number)
        truth = right.exact(call)[0]
        # In fp32 the scores err by about two half units of scale |q| |k|, which exp passes on; all
        # of it is relative to the mean of |V| under P, which is larger than an output that cancels.
        q, k, v = right.grouped(call, torch.float64)
        s = (q @ k.mT * call.scale).masked_fill(right.hidden_of(call), -torch.inf)
        mean = (torch.softmax(s, -1) @ v.abs()).amax(-1, keepdim=True)
        lengths = q.norm(dim=-1, keepdim=True) * k.norm(dim=-1).amax(-1)[..., None, None]
        allowed = 2 * mean / truth.abs().amax(-1, keepdim=True) * (2 + 2 * call.scale * lengths)
        assert (in_half_units(SET.right[kind](call), truth) <= allowed).all(), family


@pytest.mark.parametrize("family", SET.families)
def test_a_family_hides_no_bug(family):
    """Its numbers are finite, a seed gives them again, and neither keys nor values are equal."""
    for number in range(len(SET.shapes)):
        call, again = (SET.call(family, "bf16", SEED + number) for _ in range(2))
        for x, same in ((call.q, again.q), (call.k, again.k), (call.v, again.v)):
            assert x.isfinite().all()
            assert x.equal(same)
        for x in (call.k, call.v):
            assert (x.double().std(2) > 0).any(-1).all()

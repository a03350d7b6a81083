"""A tiny model trains on a CPU by every way that a CPU has, and two trainings have equal bits."""

from dataclasses import replace

import pytest
import torch

from labkernels.experiments.experiment import Options
from labkernels.experiments.training import losses, text, ways
from labkernels.experiments.training.model import Gpt, Size

RUN = replace(losses.QUICK, steps=6)
ON_A_CPU = ("tensor cores", "rounded denominator", "CUDA cores", "torch math", "torch fp32")


def test_batches_are_of_the_seed_and_held_out_text_is_another():
    first, again, other = (
        next(text.batches(seed, batch=3, context=20, device="cpu")) for seed in (0, 0, 1)
    )
    assert torch.equal(first[0], again[0])
    assert not torch.equal(first[0], other[0])
    assert torch.equal(first[0][:, 1:], first[1][:, :-1])
    trained, held = text.sources()
    assert len(trained) > 5_000_000
    assert len(held) > len(trained) // 20


@pytest.mark.parametrize("way", ON_A_CPU)
def test_logits_are_those_of_attention_in_fp32(way):
    size = RUN.size
    torch.manual_seed(0)
    model = Gpt(size)
    tokens, _ = next(text.batches(0, batch=2, context=size.context, device="cpu"))
    with torch.no_grad():
        want = model(tokens, ways.WAYS["torch fp32"]())
        found = model(tokens, ways.WAYS[way]())
    # q, k, v, P and out are rounded to 8 bits; one layer adds them to a stream of the same size
    assert (found - want).abs().max() <= 5 * 2.0**-8 * want.abs().max()
    earlier = tokens.clone()
    earlier[:, -1] = 0
    with torch.no_grad():  # a token does not see later ones
        cut = model(earlier, ways.WAYS[way]())
    assert torch.equal(cut[:, :-1], found[:, :-1])


@pytest.mark.parametrize("way", ON_A_CPU)
def test_a_training_learns(way):
    found = list(losses.trained(losses.Case(way, 0), replace(RUN, steps=12, every=1), "cpu"))
    values = [value for what, _, value in found if what == losses.TRAINING]
    assert len(values) == 12
    # ln 256 with logits near zero, and less where a byte follows itself, as indentation does
    assert 4.9 <= values[0] <= 5.6
    assert values[-1] < values[0] - 0.2
    assert found[-1][0] == losses.HELD_OUT


def test_two_trainings_have_equal_bits_and_another_way_parts():
    case = losses.Case("tensor cores", 0, 2)
    assert losses.first_difference(case, RUN, "cpu") == RUN.steps


def test_bits_that_part_are_found(monkeypatch):
    attends = iter([ways.WAYS["tensor cores"](), ways.WAYS["torch fp32"]()])
    monkeypatch.setitem(ways.WAYS, "tensor cores", lambda: next(attends))
    assert losses.first_difference(losses.Case("tensor cores", 0, 2), RUN, "cpu") == 0


def test_the_grid_has_every_way_from_every_seed():
    cells = [cell.of for cell in losses.cells(Options())]
    once = {(case.way, case.seed) for case in cells if case.runs == 1}
    assert once == {(way, seed) for way in ways.WAYS for seed in losses.SEEDS}
    assert Size().width == Size().q_heads * Size().head_dim

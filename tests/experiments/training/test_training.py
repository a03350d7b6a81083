"""A tiny model trains on a CPU by every way that a CPU has, and two trainings have equal bits."""

from dataclasses import replace

import pytest
import torch

from labkernels.experiments.training import losses, text, ways
from labkernels.experiments.training.model import Gpt

RUN = replace(losses.QUICK, steps=6)
ON_A_CPU = ("tensor cores", "rounded denominator", "CUDA cores", "torch fp32")


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
    attend, run = ways.WAYS[way](), replace(RUN, steps=12)
    values = [float(loss) for _, loss in losses.steps(attend, 0, run, "cpu")]
    assert len(values) == 12
    # ln 256 with logits near zero, and less where a byte follows itself, as indentation does
    assert 4.9 <= values[0] <= 5.6
    assert values[-1] < values[0] - 0.2


@pytest.fixture
def in_one_order():
    """Have torch itself keep one order, which its gradient of the embedding does not have."""
    torch.use_deterministic_algorithms(mode=True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(mode=False)


def test_two_trainings_have_equal_bits_and_another_way_parts(in_one_order):
    found = []
    for way in ("tensor cores", "tensor cores", "torch fp32"):
        *_, (model, loss) = losses.steps(ways.WAYS[way](), 0, RUN, "cpu")
        found.append([loss, *model.parameters()])
    first, again, other = found
    assert all(map(torch.equal, first, again))
    assert not all(map(torch.equal, first, other))

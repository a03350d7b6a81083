"""The verdict names misread variants, swizzles, steps and lanes, which a held-out set taught."""

import math
import re
from dataclasses import replace

import pytest
import torch

from labkernels.measure.strangers import inputs, runs, wrong
from labkernels.measure.strangers.wrong import Work, attend, keys_of, masked, scored, stored, valued
from labkernels.numerics.verdict.diagnosis.whole_kernel.search import LEFT

DECODE = inputs.Shape(2, 4, 2, 1, 150, 64)
CHUNK = inputs.Shape(1, 6, 3, 21, 90, 64, causal=True)


def _named(bug, shape=DECODE, dtype="bf16", asked=None, part="all"):
    call = replace(inputs.call("normal", shape, dtype, 12), asked=asked or inputs.Asked())
    found = runs.judged(call, wrong.run(bug, call, part))
    best = found.matches[0]
    assert best.rms <= LEFT < best.was or best.precision, found.summary()
    return best


def _with_sinks(change):
    return lambda w: attend(w.s, w.v, w.call.q.dtype, sinks=change(w.call.sinks))


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda x: x * math.log2(math.e), "sinks in base e where 2 is meant"),
        (lambda x: x.roll(1), "sinks of another head"),
        (lambda x: x + math.log(5), "sinks once per split"),
        (lambda x: 0.8 * x, "sinks by a factor"),
    ],
    ids=["base e", "next head", "per split", "factor"],
)
def test_sinks_that_are_misread_are_named(change, name):
    best = _named(_with_sinks(change), asked=inputs.Asked(sinks=True))
    assert name in best.name.split(", or ")


def test_a_cap_of_another_number_is_named_with_both_numbers():
    def capped(w: Work):
        s = w.q @ w.k.mT * w.call.scale
        return masked(1.5 * torch.tanh(s / 1.5), w.hidden)

    best = _named(scored(capped), CHUNK, "fp16", inputs.Asked(soft_cap=2.0))
    assert best.name == "soft cap of another number"
    assert re.search(r"1\.5\d* for 2", best.where)


def _swizzled(x, chunk: int, period: int):
    c, key = torch.arange(x.shape[-1]), torch.arange(x.shape[-2])[:, None] % period
    index = ((c // chunk) ^ key) * chunk + c % chunk
    return torch.gather(x, -1, index.expand_as(x))


@pytest.mark.parametrize("of", ["K", "V"])
def test_channels_in_the_order_of_a_swizzle_are_named(of):
    bug = (
        scored(lambda w: w.scores(k=_swizzled(w.k, 16, 4)))
        if of == "K"
        else valued(lambda w: _swizzled(w.v, 16, 4))
    )
    best = _named(bug, part="one KV head")
    assert best.name == f"{of} read with another swizzle of its channels"
    assert "chunk c of 16 channels is c xor (key / 1) % 4" in best.where


def test_queries_in_fixed_steps_are_less_exact_arithmetic_with_a_step():
    best = _named(scored(lambda w: w.scores(q=torch.round(8 * w.q) / 8)), CHUNK, "fp16")
    assert (best.name, best.precision) == ("Q in fixed steps", True)
    assert "of 0.125" in best.where


def test_a_zero_point_of_some_tiles_of_k_is_named_with_the_tiles():
    late = scored(lambda w: w.scores(k=w.k + 0.15 * (keys_of(w) >= 64)[:, None]))
    best = _named(late, CHUNK, "fp16")
    assert best.name == "K with a constant added, or K with its zero point not taken off"
    # A constant added to all scores of a row changes nothing, so either part may get the constant.
    assert re.search(r"0\.15 in every channel; keys (from 64 on|0 to 63)", best.where)


def test_lanes_without_their_maxima_are_named():
    def joined(w: Work):
        lane = keys_of(w) // 4 % 2
        tops = [masked(w.s, lane != one).amax(-1, keepdim=True).clamp(min=-1e4) for one in (0, 1)]
        p = torch.exp(w.s - torch.where(lane == 0, *tops))
        return (p @ w.v / p.sum(-1, keepdim=True)).to(w.call.q.dtype)

    best = _named(joined)
    assert best.name == "lanes merged by l alone, without their maxima"
    assert "2 lanes that take 4 keys in turn" in best.where


def test_an_output_that_is_cut_toward_0_is_said_to_be():
    def cut(w: Work, out):
        exact = (torch.softmax(w.s, -1) @ w.v).float()
        return (exact.view(torch.int32) & ~0xFFFF).view(torch.float32).bfloat16()

    best = _named(stored(cut), CHUNK)
    assert best.name.startswith("out was cut toward 0")


def test_a_factor_is_not_taken_for_a_cut():
    best = _named(stored(lambda w, out: (0.99 * out.double()).to(out.dtype)), CHUNK)
    assert "V or the output by a factor" in best.name
    assert "cut" not in best.name

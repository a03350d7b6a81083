"""Sums of P V that are kept in 16 bits after each tile are less exact, and excuse no mistake."""

from dataclasses import replace

import pytest
import torch

from labkernels.measure.mistakes.attention import grouped, hidden_of
from tests.measure.strangers import inputs, runs


def _summed(call, tile, *, normalised=False, values=lambda v, keys: v[:, :, keys]):
    """Return an output whose sum over tiles of keys is rounded to the inputs' format each time."""
    q, k, v = grouped(call, torch.float32)
    s = (q @ k.mT * call.scale).masked_fill(hidden_of(call), -torch.inf)
    p = torch.exp(s - s.amax(-1, keepdim=True))
    l = p.sum(-1, keepdim=True)
    p, l = (p / l, 1.0) if normalised else (p, l)
    p, o = p.to(call.q.dtype).float(), 0.0
    for keys in torch.arange(k.shape[2]).split(tile):
        o = (o + p[..., keys] @ values(v, keys)).to(call.q.dtype).float()
    return (o / l).to(call.q.dtype)


@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("tile", [16, 64])
@pytest.mark.parametrize("family", ["v of mean 1", "v of mean 100"])
def test_sums_in_16_bits_are_no_bug(family, tile, dtype, normalised, unnamed):
    call = inputs.call(family, inputs.SHAPES[1], dtype, 2)
    found = runs.judged(call, _summed(call, tile, normalised=normalised))
    assert found.answer in ("LESS EXACT", "ROUNDING", "INCONCLUSIVE"), found.summary()
    if tile == 16:
        assert f"sums of P V in {dtype} after each tile" in found.why, found.why


# Of 8,192 keys, most terms are smaller than half a spacing of the sum. Where scores are large, rows
# err by the place of their largest weight: little if the kernel meets it last.
FAR = {"a mean of 1": ("bf16", 1.0, 32, 8192, 2), "large scores": ("fp16", 4.0, 16, 4096, 6)}


@pytest.mark.parametrize("name", FAR)
def test_sums_in_16_bits_that_are_far_off_are_less_exact_and_a_mistake_is_not(name, unnamed):
    dtype, times, tile, keys, seed = FAR[name]
    drawn = inputs.call("v of mean 1", inputs.Shape(1, 2, 1, 1, keys, 64), dtype, seed)
    call = replace(drawn, q=drawn.q * times)
    found = runs.judged(call, _summed(call, tile, normalised=times > 1))
    assert found.findings[0].value > 1
    assert found.answer == "LESS EXACT", found.summary()
    assert f"sums of P V in {dtype} after each tile" in found.why
    assert runs.judged(call, _summed(replace(call, v=call.v.roll(1, 2)), tile)).answer == "BUG"


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize(
    "values",
    [
        lambda v, keys: v[:, :, keys] * (keys[0] != 64),
        lambda v, keys: 0.98 * v[:, :, keys],
        lambda v, keys: v.roll(1, 2)[:, :, keys],
    ],
    ids=["a tile left out", "2 % lost", "the key before"],
)
def test_sums_in_16_bits_excuse_no_mistake(values, dtype, unnamed):
    call = inputs.call("normal", inputs.SHAPES[1], dtype, 3)
    assert runs.judged(call, _summed(call, 32, values=values)).answer == "BUG"

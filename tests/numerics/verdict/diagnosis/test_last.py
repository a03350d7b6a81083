"""Names of classes that are tried last: layouts, indices, other functions, sums, offsets, masks."""

import math

import pytest
import torch

from labkernels.measure.strangers import inputs, runs, wrong
from labkernels.measure.strangers.inputs import Asked
from labkernels.numerics.verdict.diagnosis import names
from labkernels.numerics.verdict.diagnosis.outputs import bits
from tests.numerics.verdict.diagnosis.named import call_of, require_name

SEED = 31
SHAPE = inputs.Shape(2, 4, 2, 6, 75, 32, causal=True)
DECODE = inputs.Shape(3, 4, 2, 1, 75, 32)
PREFILL = inputs.Shape(2, 4, 2, 40, 40, 32, causal=True)


@pytest.fixture
def last_alone(monkeypatch):
    """Leave out what is tried before, which takes most of the time and names none of these."""
    fits = names.structure.explain
    monkeypatch.setattr(names.whole_kernel, "_ROUNDS", ())
    monkeypatch.setattr(
        names.structure, "explain", lambda *a, late=False: fits(*a, late=True) if late else []
    )


def _of_k(change):
    return wrong.scored(lambda w: w.scores(k=change(w.k)))


def _of_v(change):
    return wrong.valued(lambda w: change(w.v))


def _appended_early(w):
    def late(x):
        m, x = w.q.shape[2], x.clone()
        x[:, :, -m - 1 : -1], x[:, :, -1] = x[:, :, -m:].clone(), 0
        return x

    return wrong.attend(w.scores(k=late(w.k)), late(w.v), w.call.q.dtype)


def _packs(x, size=16):
    n = x.shape[2] // size * size
    p = x[:, :, :n].unflatten(2, (-1, size))
    written = p.unflatten(-1, (-1, 8)).transpose(-2, -3).flatten(-3)
    read = written.unflatten(-1, (-1, size, 4)).transpose(-2, -3).flatten(-2)
    return torch.cat([read.flatten(2, 3), x[:, :, n:]], 2)


def _beside_ones(x):
    n, d = x.shape[2:]
    flat = torch.cat([x, torch.ones_like(x[..., :4])], -1).flatten(2)
    return flat[..., : n * d].unflatten(-1, (n, d))


def _pages_of_17(x):
    j = torch.arange(x.shape[2])
    return x[:, :, (j + j // 16).clamp(max=x.shape[2] - 1)]


def _later_by_head(w):
    v = [w.v[:, h].roll(-1 - h // w.call.group, 1) for h in range(w.v.shape[1])]
    return torch.stack(v, 1)


def _weighed(change):
    def bug(w):
        m = w.s.amax(-1, keepdim=True)
        p = torch.exp(w.s - m)
        above, below = change(p)
        return (above @ w.v / below.sum(-1, keepdim=True)).to(w.call.q.dtype)

    return bug


def _softplus(w):
    return torch.log(torch.nn.functional.softplus(w.s))


def _capped(w):
    s = w.q @ w.k.mT * w.call.scale / 2
    return (2 * s / (1 + s**2).sqrt()).masked_fill(w.hidden, -math.inf)


def _tile_before(p):
    above = p.clone()
    for first in range(24, p.shape[-1] - 23, 48):
        above[..., first : first + 24] = p[..., first - 24 : first]
    return above, p


def _less_mean_of_tiles(q):
    return torch.cat([x - x.mean(2, keepdim=True) for x in q.split(4, 2)], 2)


def _hadamard(x):
    h = torch.ones(1, 1).double()
    while len(h) < 8:
        h = torch.cat([torch.cat([h, h], 1), torch.cat([h, -h], 1)])
    return (x.unflatten(-1, (-1, 8)) @ h / 8**0.5).flatten(-2)


def _wraps(x):
    step = 0.7 * x.abs().amax() / 127
    return (torch.remainder(torch.round(x / step) + 128, 256) - 128) * step


def _cut_int8(x):
    step = x.abs().amax((-1, -2), keepdim=True) / 127
    return torch.trunc(x / step) * step


def _exponents_in_bf16(w):
    m = w.s.amax(-1, keepdim=True)
    return (w.s - m).float().bfloat16().double()


def _turned_again(w):
    return w.scores(k=wrong_turn(w.k, torch.arange(w.k.shape[2]) + 1))


def wrong_turn(x, places):
    half = x.shape[-1] // 2
    angle = places[:, None].double() * 1e4 ** (-torch.arange(half) / half).double()
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)


def _odd(w, size=16):
    return (wrong.keys_of(w) // size % 2 == 1)[:, None]


def _channels(x):
    return torch.sin(2.0 * torch.arange(x.shape[-1]).double())


def _before(x):
    return torch.cat([x[:, :, :1], x[:, :, :-1]], 2)


def _rounded_splits(w):
    keys = wrong.keys_of(w) // 28
    parts = [torch.exp(w.s[..., keys == i]) for i in keys.unique().tolist()]
    l = torch.stack([p.sum(-1, keepdim=True) for p in parts])
    means = [
        p @ w.v[:, :, keys == i] / x.clamp(min=1e-300)
        for i, (p, x) in enumerate(zip(parts, l, strict=True))
    ]
    share = torch.exp2(torch.floor(torch.log2(l)))
    return ((share * torch.stack(means)).sum(0) / share.sum(0)).to(w.call.q.dtype)


def _some_new_keys(w):
    query, key = wrong.places(w)
    m, n = w.s.shape[-2:]
    row, new = query - (n - m), key - (n - m)
    hide = (new >= 0) & ((row * row + 3 * new + row * new) % 5 < 2) & (row != new)
    return w.s.masked_fill(hide, -math.inf)


def _cut_to_six_bits(_, out):
    fraction, power = torch.frexp(out.double())
    return torch.ldexp(torch.trunc(fraction * 64) / 64, power).to(out.dtype)


CASES = {
    "keys read from other keys": (_appended_early, SHAPE, None),
    "K read with pages in another layout": (_of_k(_packs), DECODE, None),
    "K read by another stride": (_of_k(_beside_ones), SHAPE, None),
    "K read from other keys": (_of_k(_pages_of_17), SHAPE, None),
    "V read from other keys": (wrong.valued(_later_by_head), SHAPE, None),
    "weights are no exponential": (wrong.scored(_softplus), SHAPE, None),
    "exponents clamped, in the output alone": (
        _weighed(lambda p: (p.clamp(max=0.7), p)),
        SHAPE,
        None,
    ),
    "soft cap by another function than tanh": (
        wrong.scored(_capped),
        SHAPE,
        Asked(soft_cap=2.0),
    ),
    "weights are those of another tile": (_weighed(_tile_before), DECODE, None),
    "weights are those of another row": (_weighed(lambda p: (p.roll(1, 2), p)), PREFILL, None),
    "Q less its mean": (
        wrong.scored(lambda w: w.scores(q=_less_mean_of_tiles(w.q))),
        SHAPE,
        None,
    ),
    "K turned by a Hadamard matrix": (_of_k(_hadamard), SHAPE, None),
    "V without its large numbers": (
        _of_v(lambda v: torch.where(v.abs() > 1.4, 0.0, v)),
        SHAPE,
        None,
    ),
    "K in int8, which wraps": (_of_k(_wraps), SHAPE, None),
    "V in int8": (_of_v(_cut_int8), SHAPE, None),
    "RoPE applied once more, to K alone": (wrong.scored(_turned_again), SHAPE, None),
    "V with an offset of its own in each channel": (
        wrong.valued(lambda w: w.v + 0.3 * _odd(w) * _channels(w.v)),
        SHAPE,
        None,
    ),
    "V by a factor for each channel, for some keys": (
        wrong.valued(lambda w: w.v * (1 + 0.3 * _odd(w) * _channels(w.v))),
        PREFILL,
        None,
    ),
    "K with an offset for some keys": (
        wrong.scored(lambda w: w.scores(k=w.k + 0.4 * _odd(w, 32) * _channels(w.k))),
        SHAPE,
        None,
    ),
    "K is a sum of several keys'": (_of_k(lambda k: k + 0.3 * _before(k)), SHAPE, None),
    "Q with means added or taken off": (
        wrong.scored(lambda w: w.scores(q=w.q - w.k.mean(2, keepdim=True))),
        SHAPE,
        None,
    ),
    "V through another function": (_of_v(torch.tanh), SHAPE, None),
    "splits merged with wrong weights": (_rounded_splits, DECODE, None),
    "keys left out": (wrong.scored(_some_new_keys), SHAPE, None),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", CASES)
def test_a_class_that_nothing_simpler_explains_has_its_name(name, last_alone):
    require_name(name, CASES[name], SEED)


def test_exponents_of_few_bits_have_a_name():
    call = inputs.call("normal", SHAPE, "fp16", 32)
    found = runs.judged(call, wrong.run(wrong.scored(_exponents_in_bf16), call))
    assert found.matches[0].name == "scores less their maximum rounded to bf16", found.summary()


def test_an_output_of_few_bits_is_cut_not_rounded():
    call = call_of(SHAPE, SEED)
    found = runs.judged(call, wrong.run(wrong.stored(_cut_to_six_bits), call))
    assert found.matches[0].name == "out was cut toward 0, to 6 bits", found.summary()


def test_numbers_need_as_many_bits_as_lie_between_their_first_and_last():
    numbers = torch.tensor([0.0, 1.0, -0.75, 5.0, 2.0**-140, 1 + 2.0**-30], dtype=torch.float64)
    assert bits.bits_of(numbers.numpy()).tolist() == [0, 1, 2, 3, 1, 31]


def test_an_order_of_v_is_one_of_k_where_nothing_is_hidden(monkeypatch):
    monkeypatch.setattr(names.whole_kernel, "_ROUNDS", ())
    call = inputs.call("normal", inputs.Shape(2, 4, 2, 20, 144, 32), "bf16", 33)
    key = torch.arange(144)
    tiles = _of_k(lambda k: k[:, :, (key // 24 * 5 + 2) % 6 * 24 + key % 24])
    found = runs.judged(call, wrong.run(tiles, call)).matches[0]
    assert found.name == "V read in another order, or K read in another order"

"""Points of products of mistakes that no set of bugs has: maps, parts, scales, turns, sums."""

import math

import numpy as np
import pytest
import torch

from labkernels.measure.strangers import inputs, runs, wrong
from labkernels.measure.strangers.inputs import Asked
from labkernels.numerics.verdict.diagnosis import names
from labkernels.numerics.verdict.diagnosis.whole_kernel.narrow import grids, ways
from labkernels.numerics.verdict.diagnosis.whole_kernel.products import parts
from tests.numerics.verdict.diagnosis.named import call_of, require_name

SEED = 47
SHAPE = inputs.Shape(2, 4, 2, 6, 107, 32, causal=True)
DECODE = inputs.Shape(3, 4, 2, 1, 107, 64)


@pytest.fixture
def last_alone(monkeypatch):
    """Leave out what is tried before, which takes most of the time and names none of these."""
    kernel = names.whole_kernel
    some = (*kernel.biases.ALL, *kernel.weights.ALL, *kernel.substitutes.ALL)
    monkeypatch.setattr(kernel, "_LATE", (some, kernel.blocks.ALL, *kernel._LATE[-3:]))
    monkeypatch.setattr(kernel, "_ROUNDS", ())
    monkeypatch.setattr(names.structure, "explain", lambda *a, late=False: [])


def _of_k(change):
    return wrong.scored(lambda w: w.scores(k=change(w.k)))


def _of_v(change):
    return wrong.valued(lambda w: change(w.v))


def _key(x):
    return torch.arange(x.shape[2])


def _two_tiles_on(x, size=16):
    j = _key(x)
    return x[:, :, torch.where(j // size % 2 == 0, j + 2 * size, j) % len(j)]


def _pages_in_pairs(x, size=8):
    j = _key(x)
    return x[:, :, ((j // size ^ 1) * size + j % size) % len(j)]


def _chunk_of_earlier_keys(x):
    x, j = x.clone(), _key(x)
    x[..., 8:16] = x[:, :, torch.where(j > 1, j - 2, j), 8:16]
    return x


def _swizzled(x, chunk=4):
    j, c = _key(x)[:, None], torch.arange(x.shape[3])[None]
    to = (c // chunk ^ (j ^ j // 2) % 4) * chunk + c % chunk
    return x.gather(3, to.expand(x.shape))


def _scale_of_the_pair(x, size=16):
    block = x.unflatten(-1, (-1, size))
    scale, j = block.abs().amax(-1, keepdim=True), _key(x)
    other = torch.where((j ^ 1) < len(j), j ^ 1, j)
    return (block / scale * scale[:, :, other]).flatten(-2)


def _less_middle_of_pages(x, size=16):
    pages = [p - (p.amax((2, 3), True) + p.amin((2, 3), True)) / 2 for p in x.split(size, 2)]
    return torch.cat(pages, 2)


def _three_bits(x, size=32):
    def kept(p):
        step = p.abs().amax(2, keepdim=True) / 3
        return torch.round(p / step) * step

    return torch.cat([kept(p) for p in x.split(size, 2)], 2)


def _turned(x, place):
    half = x.shape[-1] // 2
    angle = place.double()[:, None] * 1e4 ** (-torch.arange(half).double() / half)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)


def _odd_tiles_turned_back(k, size=16):
    return _turned(k, -3.0 * (_key(k) // size % 2))


def _queries_turned(w):
    return w.scores(q=_turned(w.q, 2.0 * torch.arange(1, 1 + w.q.shape[2])))


def _starts_twice(w, count=3, more=4):
    size = -(-w.s.shape[-1] // count)
    twice = (wrong.keys_of(w) % size < more).double() + 1
    return wrong.attend(w.s, w.v, w.call.q.dtype, weights=twice)


def _above_the_first(w, size=8):
    return (w.s - w.s[..., :size].amax(-1, keepdim=True)).clamp(max=0.0)


def _with_a_tile_of_the_next_head(w, size=16):
    p = torch.exp(w.s - w.s.amax(-1, keepdim=True))
    first = p[..., :size] @ w.v[:, :, :size]
    l = p.sum(-1, keepdim=True)
    return ((p @ w.v + 0.5 * first.roll(-1, 1)) / l).to(w.call.q.dtype)


def _cut_weights(w):
    p = torch.exp(w.s - w.s.amax(-1, keepdim=True))
    cut = (p.half().view(torch.int16) & ~0xFF).view(torch.float16).double()
    return (cut @ w.v / p.sum(-1, keepdim=True)).to(w.call.q.dtype)


def _chord_in_the_output(w):
    y = (w.s - w.s.amax(-1, keepdim=True)).clamp(min=-600) / math.log(2)
    p = torch.where(w.hidden, 0.0, torch.exp2(torch.floor(y)) * (1 + y - torch.floor(y)))
    l = torch.exp(w.s - w.s.amax(-1, keepdim=True)).sum(-1, keepdim=True)
    return (p @ w.v / l).to(w.call.q.dtype)


def _nibbles_swapped(x):
    step = x.abs().amax(-1, keepdim=True) / 7
    kept = torch.round(x / step) * step
    return kept[..., torch.arange(x.shape[3]) ^ 1]


def _clipped_by_head(w, out):
    top = out.double().abs().amax((0, 2, 3), keepdim=True) / 2
    return out.double().clamp(min=-top, max=top).to(out.dtype)


def _slopes_of_groups(w):
    head = torch.arange(w.q.shape[1]) // w.call.group
    slopes = 2.0 ** (-8.0 * (head + 1) / w.call.k.shape[1])
    bias = slopes[:, None, None] * wrong.distances(w.s)
    return (w.q @ w.k.mT * w.call.scale - bias).masked_fill(w.hidden, -math.inf)


CASES = {
    "K read from other keys": (_of_k(_two_tiles_on), SHAPE, None),
    "V read from other keys": (_of_v(_pages_in_pairs), SHAPE, None),
    "channels of K read from other keys": (_of_k(_chunk_of_earlier_keys), SHAPE, None),
    "K read with another swizzle": (_of_k(_swizzled), SHAPE, None),
    "V with scales of other blocks": (_of_v(_scale_of_the_pair), SHAPE, None),
    "K with wrong zero points": (_of_k(_less_middle_of_pages), SHAPE, None),
    "V in int3": (_of_v(_three_bits), SHAPE, None),
    "RoPE of K by wrong places": (_of_k(_odd_tiles_turned_back), DECODE, None),
    "RoPE of Q by wrong places": (wrong.scored(_queries_turned), SHAPE, None),
    "keys counted twice": (_starts_twice, SHAPE, None),
    "exponents clamped": (wrong.scored(_above_the_first), SHAPE, None),
    "o begins with": (_with_a_tile_of_the_next_head, DECODE, None),
    "weights are no exponential": (_chord_in_the_output, SHAPE, None),
    "V in int4 with its channels": (_of_v(_nibbles_swapped), SHAPE, None),
    "P in e5m2": (_cut_weights, SHAPE, None),
    "out clipped": (wrong.stored(_clipped_by_head), SHAPE, None),
    "ALiBi": (wrong.scored(_slopes_of_groups), SHAPE, Asked(alibi=True)),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", CASES)
def test_a_point_of_a_product_has_its_name(name, last_alone):
    require_name(name, CASES[name], SEED)


def test_a_query_of_zeros_is_not_blamed_on_k_alone():
    call = call_of(SHAPE, SEED)
    bug = wrong.scored(lambda w: w.scores(q=0 * w.q))
    found = runs.judged(call, wrong.run(bug, call)).matches[0]
    assert "Q read as 0" in found.name.split(", or ")


def test_a_mask_of_whole_tiles_is_not_called_left_out_alone():
    """In a tile of 40 rows the last ones would see all keys without a mask, too."""
    call = inputs.call("normal", inputs.Shape(1, 2, 1, 40, 40, 32, causal=True), "bf16", 48)

    def tiles(w):
        place, key = wrong.places(w)
        hidden = torch.where(place >= 32, torch.zeros_like(key) > 0, key > place)
        return wrong.masked(w.q @ w.k.mT * w.call.scale, hidden)

    found = runs.judged(call, wrong.run(wrong.scored(tiles), call)).matches[0]
    assert found.name.startswith("another mask: keys that the mask hides"), found.name


def test_parts_of_keys_are_counted_from_the_start_of_their_tile():
    tiles = parts.tiles(3, 7)
    some = dict(parts.scopes(tiles, whole=False))
    assert some[f"odd tiles, {tiles.words}"].tolist() == [0, 0, 0, 1, 1, 1, 0]
    assert parts.said("", "a", "b") == "a, b"


def test_a_way_is_the_same_for_some_keys_and_channels_as_for_all():
    x = np.random.default_rng(3).standard_normal((40, 32))
    keys, channels = np.array([1, 17, 39]), np.array([0, 5, 31])
    whole, some = ways.Some(x, 4.0), ways.Some(x, 4.0, keys, channels)
    tried = list(ways.every(x.shape))[::7]
    assert len(tried) > 500
    for way in tried:
        assert np.array_equal(way.kept(whole)[np.ix_(keys, channels)], way.kept(some)), way.where
    assert grids.GRIDS[0].rounded(np.array([1.6]), to=np.trunc).tolist() == [1.0]

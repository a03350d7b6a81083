"""Names that are tried last: few bits, rotations, memory, swizzles, biases, parts of equal size."""

import itertools
import math
from dataclasses import replace

import pytest
import torch

from labkernels.measure.strangers import inputs, runs, wrong
from labkernels.measure.strangers.inputs import Asked
from labkernels.numerics.verdict.diagnosis import names
from labkernels.numerics.verdict.diagnosis.whole_kernel.sheets import Cut

SHAPE = inputs.Shape(2, 4, 2, 6, 75, 32, causal=True)
DECODE = inputs.Shape(3, 4, 2, 1, 75, 32)


@pytest.fixture
def late_alone(monkeypatch):
    """Leave out what is tried before, which takes most of the time and names none of these."""
    monkeypatch.setattr(names.whole_kernel, "_ROUNDS", ())
    monkeypatch.setattr(names.structure, "explain", lambda *_, late=False: [])


def _of_k(change):
    return wrong.scored(lambda w: w.scores(k=change(w.k)))


def _of_v(change):
    return wrong.valued(lambda w: change(w.v))


def _by_power_of_two(x):
    blocks = x.reshape(*x.shape[:-1], -1, 16)
    step = torch.exp2(torch.ceil(torch.log2(blocks.abs().amax(-1, keepdim=True) / 7)))
    return (torch.round(blocks / step) * step).reshape(x.shape)


def _scale_of_the_page_behind(x):
    pages = list(x.split(16, 2))
    steps = [page.abs().amax((2, 3), keepdim=True) / 127 for page in pages]
    kept = [torch.round(page / step) for page, step in zip(pages, steps, strict=True)]
    return torch.cat([a * b for a, b in zip(kept, [*steps[1:], steps[-1]], strict=True)], 2)


def _p_of_three_bits(w):
    p = torch.exp(w.s - w.s.amax(-1, keepdim=True))
    power = torch.exp2(torch.floor(torch.log2(p.clamp(min=1e-300))))
    cut = torch.where(p > 0, torch.floor(p / power * 8) / 8 * power, 0.0)
    return (cut @ w.v / p.sum(-1, keepdim=True)).to(w.call.q.dtype)


def _split(w, count):
    n = w.s.shape[-1]
    ends = [i * n // count for i in range(count + 1)]
    for first, last in itertools.pairwise(ends):
        s = w.s[..., first:last]
        p = torch.exp(s)
        yield p.sum(-1, keepdim=True), p @ w.v[:, :, first:last]


def _partials(w):
    l, o = (torch.stack(x) for x in zip(*_split(w, 3), strict=True))
    part = (o / l.clamp(min=1e-300)).to(torch.float8_e5m2).double()
    return ((part * l).sum(0) / l.sum(0)).to(w.call.q.dtype)


def _clipped(x):
    top = 0.5 * x.abs().amax(-1, keepdim=True)
    return torch.minimum(torch.maximum(x, -top), top)


def _turned(x, places, base, *, pairs=False, first=0):
    half = x.shape[-1] // 2
    angle = places[..., None].double() * base ** (-(torch.arange(half) + first) / half).double()
    cos, sin = angle.cos(), angle.sin()
    if pairs:
        a, b = x[..., ::2], x[..., 1::2]
        return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


def _in_chunks(w):
    key = wrong.keys_of(w)
    return w.scores(k=_turned(w.k, key % 32 - key, 5e5, pairs=True))


def _some_places_off(w):
    off = torch.tensor([-3, 7])[:, None, None].expand(w.q.shape[:3])
    return w.scores(q=_turned(w.q, off, 1e4))


def _again(w, base, first=0):
    query, key = (x.flatten() for x in wrong.places(w))
    q, k = (_turned(x, -at, 1e4) for x, at in ((w.q, query), (w.k, key)))
    return w.scores(q=_turned(q, query, base, first=first), k=_turned(k, key, base, first=first))


def _pages_turned(w):
    b, h, n, d = w.call.k.shape
    k = torch.nn.functional.pad(w.call.k.double(), (0, 0, 0, -n % 16))
    memory = k.reshape(b, h, -1, 16, d).permute(0, 2, 1, 4, 3)  # heads, channels, slots
    read = memory.reshape(b, -1, 16, h, d).permute(0, 3, 1, 2, 4)  # slots, heads, channels
    k = read.reshape(b, h, -1, d)[:, :, :n]
    return w.scores(k=k.repeat_interleave(w.call.group, 1))


def _late_starts(w):
    b, h, n, d = w.v.shape
    flat = w.v.transpose(1, 2).reshape(b * n, h, d)
    at = torch.arange(b)[:, None] * (n - 5) + torch.arange(n)
    return flat[at].transpose(1, 2)


def _five_more(w):
    k, v = (x.roll(-1, 0)[:, :, 9:14] for x in (w.k, w.v))
    s = torch.cat([w.s, w.q @ k.mT * w.call.scale], -1)
    return wrong.attend(s, torch.cat([w.v, v], 2), w.call.q.dtype)


def _swizzled(x, row):
    at = torch.arange(x.shape[-1])
    to = (at // 4 ^ (row[:, None] // 2 % 2 * 2)) * 4 + at % 4
    return torch.take_along_dim(x, to.expand(x.shape), -1)


def _rows(out):
    return out.transpose(1, 2).flatten(1, 2)


def _stored(change):
    def bug(_, out):
        b, h, m, d = out.shape
        return change(_rows(out)).reshape(b, m, h, d).transpose(1, 2).contiguous()

    return wrong.stored(bug)


def _padded(rows):
    b, r, d = rows.shape
    return torch.nn.functional.pad(rows, (0, 4)).reshape(b, -1)[:, : r * d]


def _squares(rows):
    b, r, d = rows.shape
    return rows.reshape(b, r // 8, 8, d // 8, 8).transpose(2, 4).reshape(b, r, d)


def _capped_distance(w):
    query, key = wrong.places(w)
    bias = w.call.slopes.double()[:, None, None] * (query - key).clamp(max=16)
    return (w.q @ w.k.mT * w.call.scale - bias).masked_fill(w.hidden, -math.inf)


def _last_value(w):
    m = w.s.amax(-1, keepdim=True)
    p, sink = torch.exp(w.s - m), torch.exp(w.call.sinks.double()[:, None, None] - m)
    total = p.sum(-1, keepdim=True) + sink
    return ((p @ w.v + sink * w.v[:, :, -1:]) / total).to(w.call.q.dtype)


def _window_of_tile(w):
    query, key = wrong.places(w)
    row = torch.arange(w.s.shape[2])[:, None]
    left = w.call.asked.window_left + row % 4
    full = w.q @ w.k.mT * w.call.scale
    return full.masked_fill((key > query) | (key < query - left), -math.inf)


def _of_another_base(k):
    return _turned(_turned(k, -torch.arange(k.shape[2]), 1e4), torch.arange(k.shape[2]), 5e4)


def _registers_exchanged(q):
    """In tiles of 4 rows, rows 2 and 3 have 8 channels of rows 0 and 1, which have theirs."""
    out, d = q.clone(), q.shape[3] // 16 * 16
    tall = q[:, :, :4, :d].unflatten(3, (-1, 2, 8)).unflatten(2, (2, 2))  # [B, H, 2, 2, D/16, 2, 8]
    other = tall.clone()
    other[:, :, 0, :, :, 1] = tall[:, :, 1, :, :, 0]
    other[:, :, 1, :, :, 0] = tall[:, :, 0, :, :, 1]
    out[:, :, :4, :d] = other.flatten(4, 6).flatten(2, 3)
    return out


def _without_sine(w):
    at = wrong.places(w)[0].flatten()
    plain, half = _turned(w.q, -at, 1e4), w.q.shape[3] // 2
    cos = (at[:, None].double() * 1e4 ** (-torch.arange(half) / half).double()).cos()
    return w.scores(q=plain * torch.cat([cos, cos], -1))


def _half_a_tile_on(k, size=64):
    other = torch.arange(k.shape[2]) ^ size // 2
    there = (other < k.shape[2])[:, None]
    late = torch.where(there, k[:, :, other.clamp(max=k.shape[2] - 1)], 0.0)
    return torch.cat([k[..., :16], late[..., 16:]], -1)


def _halves_by_turns(v):
    step = v.abs().amax(-1, keepdim=True) / 7
    blocks = (torch.round(v / step) * step).unflatten(-1, (-1, 2, 8))
    return blocks.mT.flatten(-3)


def _by_the_score(w):
    s = w.q @ w.k.mT * w.call.scale
    return s * torch.tanh(s / w.call.asked.soft_cap)


CASES = {
    "K in int4": (_of_k(_by_power_of_two), SHAPE, None),
    "V in int8 with a wrong scale": (_of_v(_scale_of_the_page_behind), SHAPE, None),
    "P in 3 bits after the first": (_p_of_three_bits, SHAPE, None),
    "partial outputs merged in e5m2": (_partials, DECODE, None),
    "K clipped": (_of_k(_clipped), SHAPE, None),
    "RoPE of K by wrong places": (wrong.scored(_in_chunks), SHAPE, None),
    "RoPE some places off": (
        wrong.scored(_some_places_off),
        SHAPE,
        None,
    ),
    "RoPE of another base": (wrong.scored(lambda w: _again(w, 2e3)), SHAPE, None),
    "soft cap by another function": (
        wrong.scored(lambda w: torch.where(w.hidden, w.s, _by_the_score(w))),
        SHAPE,
        Asked(soft_cap=2.0),
    ),
    "RoPE of Q without its sine": (wrong.scored(_without_sine), SHAPE, None),
    "channels of K read from other keys": (_of_k(_half_a_tile_on), SHAPE, None),
    "V in int4 with its channels": (_of_v(_halves_by_turns), SHAPE, None),
    "RoPE of K by another base": (_of_k(_of_another_base), SHAPE, None),
    "Q read with two registers": (
        wrong.scored(lambda w: w.scores(q=_registers_exchanged(w.q))),
        SHAPE,
        None,
    ),
    "RoPE of other frequencies": (wrong.scored(lambda w: _again(w, 1e4, 1)), SHAPE, None),
    "K read with pages in another layout": (wrong.scored(_pages_turned), DECODE, None),
    "V read at an offset, across requests": (wrong.valued(_late_starts), DECODE, None),
    "keys past the end take part": (_five_more, DECODE, None),
    "V read with another swizzle of its channels": (
        wrong.valued(lambda w: _swizzled(w.v, wrong.keys_of(w))),
        SHAPE,
        None,
    ),
    "out in another layout": (_stored(_padded), SHAPE, None),
    "out in another layout, of squares": (_stored(_squares), SHAPE, None),
    "ALiBi by another distance": (wrong.scored(_capped_distance), SHAPE, Asked(alibi=True)),
    "sinks with a value": (_last_value, DECODE, Asked(sinks=True)),
    "another window or mask": (wrong.scored(_window_of_tile), SHAPE, Asked(window_left=21)),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", CASES)
def test_a_mistake_that_nothing_simpler_explains_has_its_name(name, late_alone):
    bug, shape, asked = CASES[name]
    call = inputs.call("normal", shape, "fp32", 21)
    call = call if asked is None else replace(call, asked=asked, causal=True)
    found = runs.judged(call, wrong.run(bug, call))
    assert found.matches, found.summary()
    assert found.matches[0].name.startswith(name.split(", of squares")[0]), found.summary()
    assert found.matches[0].rms < 1.5


def test_weights_of_splits_of_nearly_equal_sizes_are_a_merge(monkeypatch):
    monkeypatch.setattr(names.whole_kernel, "_ROUNDS", ())

    def by_root(w):
        l, o = (torch.stack(x) for x in zip(*_split(w, 4), strict=True))
        weights = l**0.5
        return ((weights * o / l).sum(0) / weights.sum(0)).to(w.call.q.dtype)

    call = inputs.call("normal", inputs.Shape(2, 4, 2, 1, 75, 32), "bf16", 22)
    found = runs.judged(call, wrong.run(by_root, call))
    assert found.matches[0].name.startswith("splits merged with wrong weights"), found.summary()
    assert "4 equal parts" in found.matches[0].where


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("K less its mean", lambda k: torch.cat([x - x.mean(2, True) for x in k.split(32, 2)], 2)),
        (
            "K with its zero point not taken off",
            lambda k: k + (k.amax(3, keepdim=True) + k.amin(3, keepdim=True)) / 2,
        ),
    ],
)
def test_means_of_tiles_and_zero_points_are_readings_of_keys(name, change):
    call = inputs.call("normal", SHAPE, "bf16", 24)
    found = runs.judged(call, wrong.run(_of_k(change), call))
    assert name in found.matches[0].name, found.summary()


def test_parts_of_equal_sizes_hold_all_keys():
    cut = Cut(-4)
    assert cut.starts(75).tolist() == [0, 18, 37, 56]
    assert cut.starts(3).tolist() == [0, 1, 2]  # a part has a key at least
    assert cut.words == "4 equal parts"
    assert Cut(32).starts(75).tolist() == [0, 32, 64]
    assert Cut(32).words == "tiles of 32 keys"

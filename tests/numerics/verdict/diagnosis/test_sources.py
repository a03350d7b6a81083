"""What lies elsewhere than a kernel reads it: pages, queries, masks, slots, splits and rows."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from labkernels.measure.strangers import inputs, wrong
from labkernels.measure.strangers.inputs import Asked
from labkernels.numerics.verdict.diagnosis import names
from labkernels.numerics.verdict.diagnosis.whole_kernel.sums import others
from tests.numerics.verdict.diagnosis.named import require_name

SEED = 53
SHAPE = inputs.Shape(3, 4, 2, 6, 107, 32, causal=True)
DECODE = inputs.Shape(3, 4, 2, 1, 107, 64)
SQUARE = inputs.Shape(2, 4, 2, 21, 21, 32, causal=True)


@pytest.fixture
def last_alone(monkeypatch):
    """Leave out what is tried before, which takes most of the time and names none of these."""
    kernel = names.whole_kernel
    first = (*kernel.biases.ALL, *kernel.memory.ALL)
    monkeypatch.setattr(kernel, "_LATE", (first, kernel.blocks.ALL, *kernel._LATE[-3:]))
    monkeypatch.setattr(kernel, "_ROUNDS", ())
    monkeypatch.setattr(names.structure, "explain", lambda *a, late=False: [])


def _of_q(change):
    return wrong.scored(lambda w: w.scores(q=change(w.q)))


def _of_k(change):
    return wrong.scored(lambda w: w.scores(k=change(w.k)))


def _of_v(change):
    return wrong.valued(lambda w: change(w, w.v))


def _of_both(change):
    def bug(w):
        return wrong.attend(w.scores(k=change(w, w.k)), change(w, w.v), w.call.q.dtype)

    return bug


def _key(x):
    return torch.arange(x.shape[2])


def _requests_begin_early(q):
    """Request b begins b tokens too early in a packed batch."""
    b, _, m = q.shape[:3]
    packed = q.transpose(1, 2).flatten(0, 1)
    return packed[torch.arange(b)[:, None] * (m - 1) + torch.arange(m)].transpose(1, 2)


def _second_half_of_the_next_query(q):
    half = q.shape[3] // 2
    return torch.cat([q[..., :half], q.roll(-1, 2)[..., half:]], -1)


def _mask_read_without_padding(w):
    m, n = w.hidden.shape
    rows = torch.nn.functional.pad(w.hidden, (0, -n % 16), value=True).flatten()
    other = rows[: m * n].reshape(m, n) & (wrong.keys_of(w) > 0)
    return (w.q @ w.k.mT * w.call.scale).masked_fill(other, -math.inf)


def _table_a_page_short(w, x, size=16):
    n = x.shape[2]
    pages = torch.nn.functional.pad(x, (0, 0, 0, -n % size)).unflatten(2, (-1, size))
    b, _, count = pages.shape[:3]
    pool = pages.transpose(0, 1).flatten(1, 2)
    entry = torch.arange(b)[:, None] * (count - 1) + torch.arange(count)
    return pool[:, entry].transpose(0, 1).flatten(2, 3)[:, :, :n]


def _of_the_other_head(w, v, size=20, few=3):
    other = v.unflatten(1, (-1, w.call.group)).roll(1, 1).flatten(1, 2)
    return torch.where((_key(v) % size < few)[:, None], other, v)


def _split_of_the_next_head(w, count=3):
    n = w.s.shape[-1]
    size = -(-n // count)
    m = w.s.amax(-1, keepdim=True)
    p = torch.exp(w.s - m)
    parts = [p[..., i : i + size] @ w.v[:, :, i : i + size] for i in range(0, n, size)]
    shares = [p[..., i : i + size].sum(-1, keepdim=True) for i in range(0, n, size)]
    parts[1] = (parts[1] / shares[1]).roll(-1, 1) * shares[1]
    return (sum(parts) / p.sum(-1, keepdim=True)).to(w.call.q.dtype)


def _turned(x, place):
    half = x.shape[-1] // 2
    angle = place.double()[:, None] * 1e4 ** (-torch.arange(half).double() / half)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)


def _slots_of_a_ring(k, size=23):
    return _turned(k, _key(k) % size - _key(k))


def _late_keys_on(k, first=31, step=13):
    return torch.where((_key(k) >= first)[:, None], _turned(k, 0 * _key(k) + step), k)


def _powers_of_two(k):
    size = k.abs().amax(-1, keepdim=True)
    return k / size * torch.exp2(torch.floor(torch.log2(size)))


def _half_of_e4m3(k):
    scale = k.abs().amax((2, 3), keepdim=True) / 448
    return (k / scale).float().to(torch.float8_e4m3fn).double() * scale / 2


def _bits_exchanged(w, v, size=16):
    """The bits 0 to 3 of a place become the bits 1, 3, 0 and 2."""
    x = _key(v) % size
    to = (x & 1) << 1 | (x >> 1 & 1) << 3 | (x >> 2 & 1) | (x >> 3 & 1) << 2
    at = _key(v) - x + to
    return v[:, :, torch.where(_key(v) < len(x) // size * size, at, _key(v))]


def _of_two_swizzles(k, chunk=4):
    j, c = _key(k)[:, None], torch.arange(k.shape[3])[None]
    to = (c // chunk ^ j % 8 ^ j // 2 % 4) * chunk + c % chunk
    return k.gather(3, to.expand(k.shape))


def _from_the_first_query(w, size=4):
    place, key = wrong.places(w)
    row = torch.arange(w.q.shape[2])[:, None]
    distance = (place - row % size - key).clamp(min=0)
    return _sloped(w, distance)


def _sloped(w, distance):
    bias = w.call.slopes.double()[:, None, None] * distance
    return (w.q @ w.k.mT * w.call.scale - bias).masked_fill(w.hidden, -math.inf)


def _capped_last(w):
    s, cap = _sloped(w, wrong.distances(w.s)), w.call.asked.soft_cap
    return torch.where(w.hidden, s, cap * torch.tanh(s / cap))


def _keys_of_the_next_request(w, count=21):
    k, v = (x.roll(-1, 0)[:, :, :count].clone() for x in (w.k, w.v))
    k[-1], v[-1] = 0, 0
    s = torch.cat([w.s, w.q @ k.mT * w.call.scale], -1)
    return wrong.attend(s, torch.cat([w.v, v], 2), w.call.q.dtype)


def _rows_with_gaps(w, out, gap=8):
    """The rows of packed heads lie apart, and are read as if they did not."""
    rows = out.unflatten(1, (-1, w.call.group)).flatten(2, 3)
    n, d = rows.shape[-2:]
    flat = torch.nn.functional.pad(rows, (0, gap)).flatten(2)[..., : n * d]
    return flat.unflatten(2, (n, d)).unflatten(2, (w.call.group, -1)).flatten(1, 2)


def _whole_squares_turned(w, out, size=8):
    n, d = (x // size * size for x in out.shape[2:])
    out = out.clone()
    block = out[..., :n, :d].unflatten(-1, (-1, size)).unflatten(-3, (-1, size))
    out[..., :n, :d] = block.transpose(-1, -3).flatten(-4, -3).flatten(-2, -1)
    return out


STRIDE = "keys read from other pages, by a wrong stride"
CASES = {
    "Q of another row": (_of_q(_requests_begin_early), SHAPE, None),
    "Q of another row, in some": (_of_q(_second_half_of_the_next_query), SHAPE, None),
    "another mask, read": (wrong.scored(_mask_read_without_padding), SHAPE, None),
    STRIDE: (_of_both(_table_a_page_short), DECODE, None),
    "V of another head": (_of_v(_of_the_other_head), SHAPE, None),
    "partial outputs of another": (_split_of_the_next_head, DECODE, None),
    "RoPE of K by wrong places": (_of_k(_slots_of_a_ring), DECODE, None),
    "RoPE of K by wrong": (_of_k(_late_keys_on), DECODE, None),
    "K with scales that are powers": (_of_k(_powers_of_two), SHAPE, None),
    "K in e4m3 with a wrong scale": (_of_k(_half_of_e4m3), SHAPE, None),
    "V read from other keys": (_of_v(_bits_exchanged), SHAPE, None),
    "K read with another swizzle": (_of_k(_of_two_swizzles), SHAPE, None),
    "ALiBi by another": (wrong.scored(_from_the_first_query), SHAPE, Asked(alibi=True)),
    "soft cap after": (wrong.scored(_capped_last), SHAPE, Asked(alibi=True, soft_cap=2.0)),
    "keys past the end": (_keys_of_the_next_request, DECODE, None),
    "out in another layout": (wrong.stored(_rows_with_gaps), SHAPE, None),
    "out in": (wrong.stored(_whole_squares_turned), SQUARE, None),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", CASES)
def test_what_lies_elsewhere_has_its_name(name, last_alone):
    require_name(name, CASES[name], SEED)


def test_rows_without_rounding_end_the_search_for_partial_outputs(monkeypatch):
    sheet = SimpleNamespace(kv_len=64, out=np.ones((2, 4)), truth=np.zeros((2, 4)))
    sheet.sigma = np.array([[1.0] * 4, [0.0] * 4])
    cut = SimpleNamespace(starts=lambda n: [0, 32])
    monkeypatch.setattr(others, "_changes", lambda *given: np.ones((2, 2, 4)))
    with np.errstate(all="ignore"):
        assert others._fitted([sheet], cut, None, 8.0) is None

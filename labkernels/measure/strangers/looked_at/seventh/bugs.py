"""Bugs of the seventh set: the list that was looked at from the start.

Name: the bug, and a pattern (re.search, case sensitive) that a truthful name for it matches.
"""

import math

import torch

from labkernels.measure.strangers.bugs import rope
from labkernels.measure.strangers.wrong import (
    Work,
    attend,
    keys_of,
    keys_read,
    masked,
    merged,
    parts,
    places,
    read,
    running,
    scored,
    stored,
    valued,
)

LOG2_E = math.log2(math.e)


def _heads(w: Work):
    return torch.arange(w.s.shape[1])[:, None, None]


def _odd(w: Work):
    return _heads(w) % 2 == 1


def _plain(w: Work):
    return w.q @ w.k.mT * w.call.scale


def _p(s):
    m = s.amax(-1, keepdim=True)
    return torch.exp(s - m.masked_fill(m == -math.inf, 0.0))


def _stored_p(p, w: Work):
    """Return P in the input's format, as the tensor core takes it."""
    dtype = w.call.q.dtype
    return p if dtype == torch.float32 else p.to(dtype).double()


def _last_tile_without_log2_e(w: Work, tile: int = 32):
    last = keys_of(w) >= (w.k.shape[2] - 1) // tile * tile
    return torch.where(last, w.s * math.log(2), w.s)


def _one_off_from_40(w: Work):
    index = keys_of(w)
    return read(w.v, torch.where(index >= 40, index - 1, index))


def _pairs(n: int):
    index = torch.arange(n)
    index[: n // 2 * 2] ^= 1
    return index


def _page_1_is_page_2_in_head_0(w: Work, size: int = 16):
    index = keys_of(w)
    index[size : 2 * size] += size
    first = _heads(w) == 0
    k, v = (torch.where(first, read(x, index), x) for x in (w.k, w.v))
    return attend(w.scores(k=k), v, w.call.q.dtype)


def _last_slot_is_the_first(w: Work, size: int = 16):
    index = keys_of(w)
    return torch.where(index % size == size - 1, index - (size - 1), index)


def _pages_0_and_2(w: Work, size: int = 16):
    index = keys_of(w)
    index[:size], index[2 * size : 3 * size] = (
        torch.arange(2 * size, 3 * size),
        torch.arange(size),
    )
    return index


def _next_page_from_page_2(w: Work, size: int = 16):
    index = keys_of(w)
    late = (index >= 2 * size) & (index + size < len(index))
    return torch.where(late, index + size, index)


def _window(w: Work, keys: int):
    query, key = places(w)
    return key <= query - keys


def _both_sides(w: Work, keys: int = 20):
    query, key = places(w)
    return masked(w.s, (query - key).abs() >= keys)


def _capped_in_base_2(w: Work, cap: float = 3.0):
    return cap * torch.tanh(w.s * LOG2_E / cap) / LOG2_E + torch.where(w.hidden, -math.inf, 0.0)


def _sink_by_head(w: Work):
    m = w.s.amax(-1, keepdim=True)
    p = torch.exp(w.s - m)
    l = p.sum(-1, keepdim=True) + torch.exp(0.7 * _heads(w).double() + 1.0 - m)
    return (_stored_p(p, w) @ w.v / l).to(w.call.q.dtype)


def _first_key_twice(w: Work):
    return attend(w.s, w.v, w.call.q.dtype, weights=1.0 + (keys_of(w) == 0).double())


def _alibi_by_kv_head(w: Work):
    n = w.call.k.shape[1]
    slopes = 2.0 ** (-8 * torch.arange(1, n + 1, dtype=torch.float64) / n)
    slopes = slopes.repeat_interleave(w.call.group)
    query, key = places(w)
    return w.s + slopes[:, None, None] * (key - query)


def _unroped(x, first: int = 0, base: float = 1e4):
    half = x.shape[-1] // 2
    place = torch.arange(x.shape[2], dtype=torch.float64)[:, None] + first
    angle = place * base ** (-torch.arange(half, dtype=torch.float64) / half)
    cos, sin = angle.cos(), angle.sin()
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos + b * sin, b * cos - a * sin], -1)


def _other_rope(w: Work):
    first = w.k.shape[2] - w.q.shape[2]
    return w.scores(
        rope(_unroped(w.q, first), interleaved=True, base=1e4, first=first),
        rope(_unroped(w.k), interleaved=True, base=1e4),
    )


def _causal_by_tiles(w: Work, tile: int = 8):
    if not w.call.causal:
        return w.s
    query, key = places(w)
    return masked(_plain(w), key // tile > query // tile)


def _p_in_e5m2(w: Work):
    p = _p(w.s)
    used = p.float().to(torch.float8_e5m2).double()
    return (used @ w.v / p.sum(-1, keepdim=True)).to(w.call.q.dtype)


def _less_max_in_bf16(w: Work):
    return (w.s - w.s.amax(-1, keepdim=True)).to(torch.bfloat16).double()


def _l_in_bf16(w: Work, tile: int = 8):
    p = _p(w.s)
    l = torch.zeros_like(p[..., :1])
    for first in range(0, p.shape[-1], tile):
        l = l + p[..., first : first + tile].sum(-1, keepdim=True)
        l = l.to(torch.bfloat16).double()
    return (_stored_p(p, w) @ w.v / l.clamp(min=1e-30)).to(w.call.q.dtype)


def _e4m3(x, step):
    return (x / step).clamp(-448, 448).float().to(torch.float8_e4m3fn).double() * step


def _q_in_e4m3(w: Work):
    return w.scores(q=_e4m3(w.q, w.q.abs().amax().clamp(min=1e-30) / 448))


def _coarse_v(w: Work):
    return _e4m3(w.v, 4096 * w.v.abs().amax().clamp(min=1e-30) / 448)


def _largest_alone(m, l):
    lse = m + l.clamp(min=1e-300).log()
    return (lse == lse.amax(0)).double()


def _weights_moved(m, l):
    return (torch.exp(m - m.amax(0)) * l).roll(1, 0)


def _tensor_scale_for_head(w: Work):
    by_head = w.v.abs().amax((0, 2, 3), keepdim=True).clamp(min=1e-30)
    return w.v * (by_head.amax() / by_head)


def _scale_of_the_token_before(w: Work):
    a = w.k.abs().amax(-1, keepdim=True).clamp(min=1e-30)
    return w.scores(k=w.k * (torch.cat([a[:, :, :1], a[:, :, :-1]], 2) / a))


def _last_head_is_the_first(out):
    out = out.clone()
    out[:, -1] = out[:, 0]
    return out


def _without_the_partial_tile(w: Work, tile: int = 32):
    return masked(w.s, keys_of(w) >= w.k.shape[2] // tile * tile)


def _torn(w: Work, tile: int = 16):
    """Return V with the tile before in the upper channels of the second tile's odd slots."""
    index = keys_of(w)
    late = (index >= tile) & (index < 2 * tile) & (index % 2 == 1)
    old = read(w.v, torch.where(late, index - tile, index))
    upper = torch.arange(w.v.shape[-1]) >= w.v.shape[-1] // 2
    return torch.where(upper, old, w.v)


def _two_maxima(w: Work):
    m = w.s.amax(-1, keepdim=True)
    p = torch.exp(w.s - m.to(torch.bfloat16).double())
    l = torch.exp(w.s - m).sum(-1, keepdim=True)
    return (_stored_p(p, w) @ w.v / l).to(w.call.q.dtype)


def _padded(w: Work, tile: int = 64):
    more = -w.k.shape[2] % tile
    s = torch.cat([w.s, torch.zeros(*w.s.shape[:3], more, dtype=torch.float64)], -1)
    v = torch.cat([w.v, w.v[:, :, -1:].expand(-1, -1, more, -1)], 2)
    return attend(s, v, w.call.q.dtype)


def _last_split_twice(w: Work, keys: int = 40):
    m, l, o = parts(w, keys)
    factor = torch.exp(m - m.amax(0))
    o = o * factor
    return ((o.sum(0) + o[-1]) / (l * factor).sum(0)).to(w.call.q.dtype)


def _hadamard(x):
    n = x.shape[-1]
    h = torch.ones(1, 1, dtype=torch.float64)
    while len(h) < n:
        h = torch.cat([torch.cat([h, h], 1), torch.cat([h, -h], 1)])
    return x @ h / math.sqrt(n)


_SCALE = "scale|temperature"
_HEADS = "another row|another head|heads|head"
_PAGE = "page|block|slot|keys read|key read|read for another|offset|order"
_LOST = "left out|dropped|skipped|read as 0"
_FACTOR = "factor|times|common mode|scale"

WRONG = {
    "scale of the dim padded by 32": (
        scored(lambda w: w.s * math.sqrt(w.q.shape[-1] / (w.q.shape[-1] + 32))),
        _SCALE,
    ),
    "scale twice in query head 1": (
        scored(lambda w: torch.where(_heads(w) == 1, w.s * w.call.scale, w.s)),
        _SCALE,
    ),
    "log2 e missing in last tile of 32": (
        scored(_last_tile_without_log2_e),
        _SCALE + "|log2|log base|last keys|last tile|scores of .*keys",
    ),
    "V halved in odd query heads": (
        valued(lambda w: torch.where(_odd(w), w.v / 2, w.v)),
        _FACTOR + "|half|halved",
    ),
    "V one key off from key 40 on": (
        valued(_one_off_from_40),
        "offset|V of the key|V .*(key|shift|order|read)",
    ),
    "output heads exchanged in pairs": (
        stored(lambda w, out: out[:, _pairs(out.shape[1])]),
        _HEADS,
    ),
    "output rows exchanged in pairs": (
        stored(lambda w, out: out[:, :, _pairs(out.shape[2])]),
        "another row|another query|queries|rows",
    ),
    "K channels rotated by 8": (
        scored(lambda w: w.scores(k=w.k.roll(8, -1))),
        "channels|K .*(order|layout)",
    ),
    "page 1 is page 2 in the first query head": (_page_1_is_page_2_in_head_0, _PAGE),
    "last slot of each page of 16 is its first": (
        keys_read(_last_slot_is_the_first),
        _PAGE + "|twice",
    ),
    "pages 0 and 2 of V exchanged": (
        valued(lambda w: read(w.v, _pages_0_and_2(w))),
        "page|block|V .*(order|offset|key|read|slot)",
    ),
    "page number too large by 1 from page 2 on": (keys_read(_next_page_from_page_2), _PAGE),
    "window of 20 to both sides": (scored(_both_sides), "window|" + _LOST),
    "window of 24 in odd heads": (
        scored(lambda w: masked(w.s, _window(w, 24) & _odd(w))),
        "window|" + _LOST,
    ),
    "window of 30 with the first 4 keys kept": (
        scored(lambda w: masked(w.s, _window(w, 30) & (keys_of(w) >= 4))),
        "window|" + _LOST,
    ),
    "soft cap of 3 on base-2 scores": (
        scored(_capped_in_base_2),
        "soft cap|cap of|tanh|clamp|saturat",
    ),
    "sink logits by query head": (_sink_by_head, "sink|denominator|padding"),
    "first key's weight counted twice": (
        _first_key_twice,
        "sink|twice|first key|key 0|counted|one key|single key",
    ),
    "ALiBi slopes by KV head": (
        scored(_alibi_by_kv_head),
        "ALiBi|bias|position|distance|slope",
    ),
    "RoPE of the other convention": (scored(_other_rope), "RoPE|rotation|rotary|position"),
    "K by interleaved GQA": (
        scored(lambda w: w.scores(k=w.call.k.double().repeat(1, w.call.group, 1, 1))),
        "GQA|K of another head|KV head|K .*head|group",
    ),
    "diagonal tile of 8 not masked": (
        scored(_causal_by_tiles),
        "causal|mask|hidden|hides|future|tile",
    ),
    "P kept in e5m2": (_p_in_e5m2, "P in|P .*(e5m2|fp8|8 bits|rounded)|weights .*round|e5m2"),
    "S less the maximum in bf16": (
        scored(_less_max_in_bf16),
        "scores|S in|S .*(bf16|rounded)|exponent|argument of",
    ),
    "bf16 o in tiles of 8": (
        running(8, "bfloat16"),
        "accumulat|running o|o in|o .*rounded",
    ),
    "bf16 l in tiles of 8": (
        _l_in_bf16,
        "denominator|row sum|l in|l .*(bf16|rounded)|normalis|factor|common mode",
    ),
    "q in e4m3 of one scale": (
        scored(_q_in_e4m3),
        "[qQ] in|[qQ] .*(e4m3|fp8|8 bits|rounded)|quer.*(e4m3|fp8|rounded)",
    ),
    "merge takes the split of the largest lse": (
        merged(32, _largest_alone),
        "merge|weighted|split|partial|" + _LOST,
    ),
    "split weights moved on by one": (
        merged(32, _weights_moved),
        "merge|weighted|split|partial|lse",
    ),
    "tensor's V scale for each head's": (valued(_tensor_scale_for_head), _FACTOR),
    "V in e4m3 with a scale 4096 times too large": (
        valued(_coarse_v),
        "V in|V .*(e4m3|fp8|bits|steps|rounded|int8|quanti)",
    ),
    "K scale of the token before": (
        scored(_scale_of_the_token_before),
        "scale|K .*(factor|times|token|quanti)",
    ),
    "last head holds the first head's output": (
        stored(lambda w, out: _last_head_is_the_first(out)),
        _HEADS + "|stale|copied|repeated",
    ),
    "ragged last tile of 32 dropped": (
        scored(_without_the_partial_tile),
        _LOST + "|at the end|tail|last tile|kv length|split|page",
    ),
    "torn V tile": (
        valued(_torn),
        "torn|race|stale|channels|V .*(key|offset|order|tile|block|page|read)",
    ),
    "bf16 m in P, fp32 m in l": (
        _two_maxima,
        "maximum|maxima|rescale|denominator|normalis|factor|common mode|times",
    ),
    "padding keys of score 0 with the last V": (
        _padded,
        "padding|padded|denominator|hidden|last key|score 0|scores of 0|twice",
    ),
    "last split added twice to o": (
        _last_split_twice,
        "twice|split|merge|weighted|partial|denominator",
    ),
    "V zero point by channel forgotten": (
        valued(lambda w: w.v - w.v.amin(2, keepdim=True)),
        "constant|added|zero point|offset|bias|channels|mean",
    ),
    "Hadamard rotation of K only": (
        scored(lambda w: w.scores(k=_hadamard(w.k))),
        "Hadamard|rotation|rotated|channels|K .*(another|layout|order)",
    ),
}
"""Name: the bug, and a pattern that a right name for it matches."""

"""Bugs of the seventh set that were held out at its recording, by the first writer.

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


def _weighted(of_key):
    """Weights of some keys counted more than once, in both sums."""
    return lambda w: attend(w.s, w.v, w.call.q.dtype, weights=1.0 + of_key(w).double())


def _times(out, factor: float):
    return (out.double() * factor).to(out.dtype)


def _early_in_the_last_kv_head(w: Work):
    last = _heads(w) >= w.s.shape[1] - w.call.group
    return torch.where(last, w.v.roll(-1, 2), w.v)


def _four_keys_on(w: Work):
    return (keys_of(w) + 4).clamp(max=w.k.shape[2] - 1)


def _q_of_the_next(w: Work):
    return w.scores(q=w.q.unflatten(1, (-1, w.call.group)).roll(-1, 2).flatten(1, 2))


def _window_from_the_first_key(w: Work):
    return masked(w.s, keys_of(w) >= 40)


def _tanh_alone(w: Work):
    return masked(torch.tanh(w.s / 4), w.hidden)


def _sink_in_each_split(w: Work, keys: int = 48):
    m = w.s.amax(-1, keepdim=True)
    p = torch.exp(w.s - m)
    splits = -(-w.k.shape[2] // keys)
    l = p.sum(-1, keepdim=True) + splits * torch.exp(1.0 - m)
    return (_stored_p(p, w) @ w.v / l).to(w.call.q.dtype)


def _alibi(w: Work, power: float, sign: float = 1.0):
    heads = w.s.shape[1]
    slopes = 2.0 ** (-power * torch.arange(1, heads + 1, dtype=torch.float64) / heads)
    query, key = places(w)
    return w.s + sign * slopes[:, None, None] * (key - query)


def _q_one_place_ahead(w: Work, base: float = 1e4):
    half = w.q.shape[-1] // 2
    angle = base ** (-torch.arange(half, dtype=torch.float64) / half)
    a, b = w.q[..., :half], w.q[..., half:]
    cos, sin = angle.cos(), angle.sin()
    return w.scores(q=torch.cat([a * cos - b * sin, a * sin + b * cos], -1))


def _groups_too_large(w: Work):
    kv = torch.arange(w.s.shape[1]) // (2 * w.call.group)
    k, v = (x.double()[:, kv] for x in (w.call.k, w.call.v))
    return attend(w.scores(k=k), v, w.call.q.dtype)


def _top_left_in_odd_heads(w: Work):
    hide = keys_of(w) > torch.arange(w.s.shape[2])[:, None]
    return torch.where(_odd(w), masked(_plain(w), hide), w.s)


def _packed_row(w: Work):
    """Rows (query, member of the group) are packed; the mask takes row % M for row // group."""
    if not w.call.causal:
        return w.s
    m, n = w.s.shape[-2:]
    member = _heads(w) % w.call.group
    row = (torch.arange(m)[:, None] * w.call.group + member) % m
    return masked(_plain(w), keys_of(w) > row + (n - m))


def _right_weights(m, l):
    return torch.exp(m - m.amax(0)) * l


def _base_2_twice(m, l):
    lse = (m + l.clamp(min=1e-300).log()) * LOG2_E * LOG2_E
    return torch.exp2(lse - lse.amax(0))


def _one_after_another(m, l):
    n = len(m)
    weights = 0.5 ** torch.arange(n, 0, -1, dtype=torch.float64)
    weights[0] *= 2
    return weights.view(-1, 1, 1, 1, 1).expand_as(m)


def _by_head(x):
    return x.abs().amax((0, 2, 3), keepdim=True).clamp(min=1e-30)


def _k_scale_of_head_0(w: Work):
    a = _by_head(w.k)
    return w.scores(k=w.k * (a[:, :1] / a))


def _descale_of_k(w: Work):
    return w.v * (_by_head(w.k) / _by_head(w.v))


def _last_quarter_of_v(w: Work):
    late = (keys_of(w) >= w.k.shape[2] * 3 // 4)[:, None]
    return w.v.masked_fill(late & _odd(w), 0.0)


def _unwritten(out):
    out = out.clone()
    out[..., -8:] = 0.0
    return out


def _old_memory(out):
    """A block of 16 channels of one head of one request holds what was there before."""
    out = out.clone()
    block = out[0, -1, :, 16:32]
    old = torch.randn(block.shape, generator=torch.Generator().manual_seed(3))
    out[0, -1, :, 16:32] = (0.4 * old).to(out.dtype)
    return out


def _tile_of_a_neighbour(w: Work, tile: int = 32):
    other = w.v.roll(1, 0) if w.v.shape[0] > 1 else w.v.roll(w.call.group, 1)
    index = keys_of(w)
    return torch.where(((index >= tile) & (index < 2 * tile))[:, None], other, w.v)


def _stage_behind(w: Work, tile: int = 16):
    index = keys_of(w)
    return read(w.v, torch.where(index >= tile, index - tile, index))


def _warps_exchanged(out, rows: int = 8):
    if out.shape[2] < 2 * rows:
        return out
    return torch.cat([out[:, :, rows : 2 * rows], out[:, :, :rows], out[:, :, 2 * rows :]], 2)


def _transposed_tiles(w: Work, size: int = 32):
    v = w.v.clone()
    for key in range(0, v.shape[2] - size + 1, size):
        for channel in range(0, v.shape[3] - size + 1, size):
            place = (..., slice(key, key + size), slice(channel, channel + size))
            v[place] = w.v[place].mT
    return v


def _last_request_short(w: Work, keys: int = 7):
    hide = torch.zeros(w.s.shape[0], 1, 1, w.s.shape[-1], dtype=torch.bool)
    hide[-1, ..., -keys:] = True
    return masked(w.s, hide)


def _not_rescaled_in_the_last_head(w: Work):
    good, bad = attend(w.s, w.v, w.call.q.dtype), running(32, "o kept")(w)
    return torch.where(_heads(w) == w.s.shape[1] - 1, bad, good)


def _clamped(w: Work, tile: int = 32):
    p = torch.exp((w.s - w.s[..., :tile].amax(-1, keepdim=True)).clamp(max=0.0))
    return (_stored_p(p, w) @ w.v / p.sum(-1, keepdim=True)).to(w.call.q.dtype)


def _straight_lines(w: Work):
    y = (w.s - w.s.amax(-1, keepdim=True)).clamp(min=-200.0) * LOG2_E
    whole = y.floor()
    p = ((1 + y - whole) * torch.exp2(whole)).masked_fill(w.hidden, 0.0)
    return (_stored_p(p, w) @ w.v / p.sum(-1, keepdim=True)).to(w.call.q.dtype)


def _without_channels(w: Work):
    q = w.q.clone()
    q[..., 16:24] = 0.0
    return w.scores(q=q)


def _l_without_some(w: Work):
    p = _p(w.s)
    l = (p * (keys_of(w) % 32 != 31)).sum(-1, keepdim=True)
    return (_stored_p(p, w) @ w.v / l).to(w.call.q.dtype)


_SCALE = "scale|temperature"
_HEADS = "another row|another head|heads|head"
_LOST = "left out|dropped|skipped|read as 0"
_FACTOR = "factor|times|common mode|scale"
_ALIBI = "ALiBi|bias|position|distance|slope"
_ROPE = "RoPE|rotation|rotary|rotated|position"
_MERGE = "merge|weighted|split|partial|lse"
_V_READ = "V .*(key|offset|order|tile|block|page|read|layout|stage)|stale"
_COUNTED = "twice|counted|more than once|repeated|denominator|bias|merge|split|page|keys read"

WRONG = {
    "scale by the width of all heads": (
        scored(lambda w: w.s / math.sqrt(w.s.shape[1])),
        _SCALE,
    ),
    "output times log2 e": (
        stored(lambda w, out: _times(out, LOG2_E)),
        _FACTOR + "|log2",
    ),
    "K two keys late": (
        scored(lambda w: w.scores(k=w.k.roll(2, 2))),
        "K of the key|K .*(key|offset|shift|order|read)|offset",
    ),
    "V one key early in the last KV head": (
        valued(_early_in_the_last_kv_head),
        "V of the key|V .*(key|offset|shift|order|read)|offset",
    ),
    "first 4 keys never reached, the last one read instead": (
        keys_read(_four_keys_on),
        "offset|of the key|key read|keys read|shift|page|block|" + _LOST,
    ),
    "V channels reversed in eights": (
        valued(lambda w: w.v.unflatten(-1, (-1, 8)).flip(-1).flatten(-2)),
        "channels|V .*(order|layout)",
    ),
    "q of the next head in its group": (
        scored(_q_of_the_next),
        "another row|another head|heads|[qQ] of|group|quer",
    ),
    "window of 40 laid from the first key": (
        scored(_window_from_the_first_key),
        "window|at the end|mask|split|page|" + _LOST,
    ),
    "soft cap of 4 not multiplied back": (
        scored(_tanh_alone),
        "soft cap|cap of|tanh|clamp|saturat|scale",
    ),
    "soft cap of 5 after the mask": (
        lambda w: attend(5 * torch.tanh(w.s / 5), w.v, w.call.q.dtype),
        "soft cap|cap of|tanh|hidden|hides|mask|clamp",
    ),
    "sink of 1 in each split of 48": (_sink_in_each_split, "sink|denominator|padding"),
    "ALiBi slopes of base 2^-4": (scored(lambda w: _alibi(w, 4.0)), _ALIBI),
    "ALiBi of the wrong sign": (scored(lambda w: _alibi(w, 8.0, -1.0)), _ALIBI),
    "RoPE again on K only": (
        scored(lambda w: w.scores(k=rope(w.k, interleaved=False, base=1e4))),
        _ROPE,
    ),
    "RoPE of q one place ahead": (scored(_q_one_place_ahead), _ROPE),
    "GQA with groups of twice the size": (
        _groups_too_large,
        "GQA|group|another head|KV head|heads",
    ),
    "top-left causal in odd heads": (
        scored(_top_left_in_odd_heads),
        "causal|mask|window|" + _LOST,
    ),
    "packed row % M for row // group": (
        scored(_packed_row),
        "causal|mask|hidden|hides|window|packed|" + _LOST,
    ),
    "partials of splits of 24 in bf16": (
        merged(24, _right_weights, torch.bfloat16),
        "partial|split|o in|o .*rounded",
    ),
    "lse taken to base 2 twice in the merge": (
        merged(32, _base_2_twice),
        _MERGE + "|log base|base 2|log2",
    ),
    "splits averaged one after another": (
        merged(40, _one_after_another),
        _MERGE + "|unweighted|mean|average",
    ),
    "K scale of head 0 for each head": (
        scored(_k_scale_of_head_0),
        "scale|K .*(factor|times|quanti)",
    ),
    "descale of K on V": (valued(_descale_of_k), _FACTOR),
    "V 0 in the last quarter of keys in odd heads": (
        valued(_last_quarter_of_v),
        "read as 0|V .*(zero|0|left out|missing)|zeros",
    ),
    "last 8 output channels never written": (
        stored(lambda w, out: _unwritten(out)),
        "never written|channels|unwritten|zero",
    ),
    "a block of old memory in the output": (
        stored(lambda w, out: _old_memory(out)),
        "never written|stale|old|uninit|garbage|outliers|channels|block|elements",
    ),
    "V tile 1 of a neighbour": (
        valued(_tile_of_a_neighbour),
        "V .*(request|another head|KV head|key|page|tile|block|read)|request|page|stale",
    ),
    "first key of each tile of 32 in both tiles": (
        _weighted(lambda w: (keys_of(w) % 32 == 0) & (keys_of(w) > 0)),
        "twice|counted|more than once|repeated|tile|overlap|boundar|key read",
    ),
    "V tile of 16 one stage behind": (valued(_stage_behind), "offset|" + _V_READ),
    "rows of two warps exchanged": (
        stored(lambda w, out: _warps_exchanged(out)),
        "another row|another query|queries|rows|order",
    ),
    "V tiles of 32 by 32 transposed": (
        valued(_transposed_tiles),
        "transpos|layout|channels|" + _V_READ,
    ),
    "last partial tile of 32 repeated": (
        _weighted(lambda w: keys_of(w) >= w.k.shape[2] // 32 * 32),
        _COUNTED + "|at the end|last",
    ),
    "kv length of the last request 7 short": (
        scored(_last_request_short),
        "at the end|length|kv_len|tail|last keys|" + _LOST,
    ),
    "V offset wraps after 1024 elements": (
        valued(lambda w: read(w.v, keys_of(w) % (1024 // w.v.shape[-1]))),
        "wrap|overflow|offset|period|repeat|" + _V_READ,
    ),
    "shared prefix of 24 keys counted twice": (
        _weighted(lambda w: keys_of(w) < 24),
        _COUNTED + "|prefix|first keys",
    ),
    "rescale forgotten in one head": (
        _not_rescaled_in_the_last_head,
        "rescale|stale|running max|accumulat",
    ),
    "weights clamped by the first tile's maximum": (
        _clamped,
        "clamp|maximum|cap|saturat|clip|rescale",
    ),
    "exp2 by straight lines": (
        _straight_lines,
        "exp|function|polynomial|interpolat|approximation|weights",
    ),
    "channels 16 to 23 missing in q k": (
        scored(_without_channels),
        "channels|K .*(read as 0|left out)",
    ),
    "every 32nd key missing in the denominator": (
        _l_without_some,
        "denominator|normalis|row sum|twice|factor|common mode|times",
    ),
}
"""Name: the bug, and a pattern that a right name for it matches."""

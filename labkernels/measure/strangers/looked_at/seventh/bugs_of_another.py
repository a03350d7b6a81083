"""Bugs of the seventh set that were held out at its recording, by the second writer."""

import math

import torch

from labkernels.measure.strangers.bugs import Bug
from labkernels.measure.strangers.wrong import (
    Work,
    attend,
    keys_of,
    keys_read,
    masked,
    merged,
    places,
    read,
    scored,
    stored,
    valued,
)

_SCALE = r"\bscale|\bscaling|temperature|factor on the scores|scores (multiplied|divided)"
_FACTOR = r"factor|times|multiplied|divided|scaled|\bscale of V|V scale|denominator"
_KEYS = r"\bkeys?\b|\bpages?\b|\btiles?\b|\bblocks?\b|\bslots?\b|offset"
_LOST = r"left out|dropped|skipped|missing|ignored|not read|\blost"
_WINDOW = r"window|left out|local|chunk|band"
_MASK = r"mask|hidden|hides|causal|hidden keys|visible"
_SINK = r"\bsink|in the denominator|padding|null key|extra key"
_BIAS = r"ALiBi|alibi|slope|bias|distance"
_ROPE = r"RoPE|rope|rotation|rotated|rotary|position"
_HEADS = r"\bheads?\b|another row|GQA|group"
_ROWS = r"\brows?\b|quer(y|ies)|warp"
_CHANNELS = r"channel|element|column|layout|transpos"
_MERGE = r"merge|weighted|weights of|split|partial|combine|lse|log base"
_EXP = r"\bexp|approximation|polynomial|\bweights?\b|\bP\b|function"
_TWICE = r"twice|double|counted|repeated|duplicate"
_STALE = r"\bstale|never written|uninitiali|\bold\b|previous|earlier step"


def _heads_of(w: Work):
    return torch.arange(w.s.shape[1], dtype=torch.float64)[:, None, None]


def _kv_heads_of(w: Work):
    return torch.arange(w.s.shape[1])[:, None, None] // w.call.group


def _rows_of(w: Work):
    return torch.arange(w.s.shape[2])


def _plain(w: Work):
    return w.q @ w.k.mT * w.call.scale


def _weights_of(w: Work, s=None):
    s = w.s if s is None else s
    m = s.amax(-1, keepdim=True)
    return torch.exp(s - m.masked_fill(m == -math.inf, 0.0))


def _rounded_p(w: Work, p):
    return p if w.call.q.dtype == torch.float32 else p.to(w.call.q.dtype).double()


def _divided(w: Work, o, l):
    return (o / torch.where(l == 0, torch.ones_like(l), l)).to(w.call.q.dtype)


def _both(w: Work, k=None, v=None):
    return attend(w.s if k is None else w.scores(k=k), w.v if v is None else v, w.call.q.dtype)


def _times(factor):
    return stored(lambda w, out: (out.double() * factor).to(out.dtype))


def _spread(x, first: int, last: int, other):
    """x with keys first to last - 1 of another tensor."""
    at = torch.arange(x.shape[2])
    return torch.where(((at >= first) & (at < last))[:, None], other, x)


def _sunk(w: Work, mass):
    m = w.s.amax(-1, keepdim=True)
    p = torch.exp(w.s - m)
    return _divided(w, _rounded_p(w, p) @ w.v, p.sum(-1, keepdim=True) + mass * torch.exp(-m))


def _weighed(w: Work, weights):
    return attend(w.s, w.v, w.call.q.dtype, weights)


def _unscaled_first_tile(w: Work):
    return torch.where(keys_of(w) < 32, w.s / w.call.scale, w.s)


def _table_row_short(w: Work, size: int = 16):
    """Request b starts b pages too early in a pool of all requests' pages."""
    b, n = w.k.shape[0], w.k.shape[2]

    def read_from(x):
        pool = x.transpose(0, 1).flatten(1, 2)
        rows = [pool[:, i * (n - size) : i * (n - size) + n] for i in range(b)]
        return torch.stack(rows)

    return _both(w, read_from(w.k), read_from(w.v))


def _stride_of_double_pages(w: Work, size: int = 16):
    at = keys_of(w)
    return (at // size * 2 * size + at % size) % len(at)


def _group_reversed(w: Work, x):
    return x.unflatten(1, (-1, w.call.group)).flip(2).flatten(1, 2)


def _eights_of_rows_exchanged(w: Work, out):
    at = _rows_of(w)
    to = at ^ 8
    return out[:, :, torch.where(to < len(at), to, at)]


def _inside(w: Work, left: int, ahead: int = 0):
    query, key = places(w)
    return key > query + ahead - left


def _odd_heads_local(w: Work):
    odd = torch.arange(w.s.shape[1])[:, None, None] % 2 == 1
    return masked(w.s, odd & ~_inside(w, 12))


def _capped(s, cap: float):
    return cap * torch.tanh(s / cap)


def _capped_with_hidden(w: Work, cap: float = 4.0):
    return _capped(_plain(w), cap).masked_fill(w.hidden, -cap)


def _slopes(w: Work, first: int, heads: int):
    query, key = places(w)
    slope = 2.0 ** (-8 * (_heads_of(w) + first) / heads)
    return slope * (key - query)


def _turned(x, place, base: float = 1e4, channels: int | None = None):
    """x [B, H, S, D] rotated in halves of its first channels by places [S]."""
    channels = channels or x.shape[-1]
    half = channels // 2
    angle = place[:, None] * base ** (-torch.arange(half, dtype=torch.float64) / half)
    a, b = x[..., :half], x[..., half:channels]
    cos, sin = angle.cos(), angle.sin()
    return torch.cat([a * cos - b * sin, a * sin + b * cos, x[..., channels:]], -1)


def _query_places(w: Work):
    m, n = w.s.shape[-2:]
    return torch.arange(m, dtype=torch.float64) + n - m


def _key_places(w: Work):
    return torch.arange(w.k.shape[2], dtype=torch.float64)


def _by_modulo(w: Work, x):
    return x.double().repeat(1, w.call.group, 1, 1)


def _online(w: Work, block: int, rescale_at=None, sum_of=None, acc_of=None, moved=None):
    """Tiles with a running maximum. Bugs: which rows rescale, and roundings of m, l and o."""
    m = torch.full((*w.s.shape[:3], 1), -math.inf, dtype=torch.float64)
    l, o = torch.zeros_like(m), torch.zeros(*w.s.shape[:3], w.v.shape[-1], dtype=torch.float64)
    for i, first in enumerate(range(0, w.s.shape[-1], block)):
        s = w.s[..., first : first + block]
        top = torch.maximum(m, s.amax(-1, keepdim=True))
        shift = top.masked_fill(top == -math.inf, 0.0)
        p, rescale = torch.exp(s - shift), torch.exp(m - shift)
        of_o = rescale
        if moved:
            of_o = torch.exp(moved(m) - moved(shift))
        if rescale_at is not None:
            seen = m > -math.inf
            of_o = torch.where(rescale_at(w, i) & seen, torch.ones_like(rescale), rescale)
        l = l * rescale + p.sum(-1, keepdim=True)
        o = o * of_o + _rounded_p(w, p) @ w.v[:, :, first : first + block]
        l, o = (sum_of(l) if sum_of else l), (acc_of(o) if acc_of else o)
        m = top
    return _divided(w, o, l)


def _in_bf16(x):
    return x.to(torch.bfloat16).double()


def _linear_exp2(w: Work):
    m = w.s.amax(-1, keepdim=True)
    x = ((w.s - m) * math.log2(math.e)).clamp(min=-126.0)
    whole = x.floor()
    p = (torch.exp2(whole) * (1 + x - whole)).masked_fill(w.s == -math.inf, 0.0)
    return _divided(w, _rounded_p(w, p) @ w.v, p.sum(-1, keepdim=True))


def _head_factors(w: Work, x):
    step = torch.tensor([1.0, 1.37, 0.81, 1.22, 0.93, 1.61, 0.74, 1.1], dtype=torch.float64)
    return x * step[_kv_heads_of(w) % 8]


def _page_factors(w: Work, size: int = 16):
    page = keys_of(w) // size
    return w.v * (0.7 + 0.15 * (page * 5 % 7))[:, None]


def _newest_is_the_one_before(x):
    return torch.cat([x[:, :, :-1], x[:, :, -2:-1]], 2)


def _tail_of_other_request(w: Work, keys: int = 8):
    n = w.v.shape[2]
    return _spread(w.v, n - keys, n, w.v.roll(1, 0))


def _stale_columns(w: Work, out):
    """The last eight channels as the head before has them."""
    return torch.cat([out[..., :-8], out.roll(1, 1)[..., -8:]], -1)


def _stage_behind(w: Work, size: int = 32):
    at = keys_of(w)
    return torch.where(at >= size, at - size, at)


def _last_tile_dropped(w: Work, size: int = 64):
    n = w.s.shape[-1]
    return masked(w.s, keys_of(w) >= (n - 1) // size * size if n > size else keys_of(w) >= n - 16)


def _last_key_fills_the_tile(w: Work, size: int = 128):
    n = w.s.shape[-1]
    return 1 + (keys_of(w) == n - 1).double() * (-n % size)


def _torn_channels(x, size: int = 32):
    """Odd tiles of which the upper half of the channels is that of the tile before."""
    at = torch.arange(x.shape[2])
    old = read(x, torch.where(at // size % 2 == 1, at - size, at))
    half = x.shape[-1] // 2
    return torch.cat([x[..., :half], old[..., half:]], -1)


def _lane_missing_in_l(w: Work):
    p = _weights_of(w)
    l = (p * (keys_of(w) % 8 != 3)).sum(-1, keepdim=True)
    return _divided(w, _rounded_p(w, p) @ w.v, l)


def _one_top_of_another_row(w: Work):
    """exp against the row's maximum in o, against its first tile's in l."""
    p = _weights_of(w)
    first = w.s[..., :32].amax(-1, keepdim=True)
    l = torch.exp(w.s - first).sum(-1, keepdim=True)
    return _divided(w, _rounded_p(w, p) @ w.v, l)


def _late_queries_first(w: Work):
    return w.scores(q=w.q.roll(-1, 2)) if w.q.shape[2] > 1 else w.scores(q=w.q.roll(-1, 1))


def _queries_by_pairs(w: Work):
    """Each odd query head computed with q of the even one before."""
    heads = torch.arange(w.s.shape[1]) // 2 * 2
    return w.scores(q=w.q[:, heads])


def _k_lower_channels_only(w: Work):
    d = w.k.shape[-1]
    return w.scores(k=w.k * (torch.arange(d) < d - 16))


def _top_left(w: Work):
    at = torch.arange(w.s.shape[2])[:, None]
    late = _heads_of(w) >= w.s.shape[1] // 2
    hide = torch.arange(w.s.shape[3])[None] > at
    return torch.where(late, masked(_plain(w), hide), w.s)


WRONG: dict[str, tuple[Bug, str]] = {
    "scale of the head padded to 80": (scored(lambda w: w.s * 0.8**0.5), _SCALE),
    "scale of a latent of 576 for 192": (scored(lambda w: w.s * (1 / 3) ** 0.5), _SCALE),
    "first tile not scaled": (scored(_unscaled_first_tile), _SCALE + "|unscaled|bias"),
    "dropout factor kept in inference": (_times(1 / 0.9), _FACTOR + "|dropout"),
    "K a page later than V": (
        scored(lambda w: w.scores(k=w.k.roll(-16, 2))),
        r"\bK\b.*(key|offset|page|slot)|offset",
    ),
    "stride of the block table a page short": (_table_row_short, _KEYS + "|request"),
    "page twice as long as its stride": (keys_read(_stride_of_double_pages), _KEYS + "|stride"),
    "offset of V in five bits": (
        valued(lambda w: read(w.v, keys_of(w) & 31)),
        r"\bV\b.*(key|offset|page|slot|tile|block|read)|overflow|wrap|" + _KEYS,
    ),
    "group written backwards": (stored(_group_reversed), _HEADS),
    "rows eight apart exchanged": (stored(_eights_of_rows_exchanged), _ROWS),
    "q of the next query": (scored(_late_queries_first), _ROWS + r"|\bq\b|\bQ\b|" + _HEADS),
    "q of even heads for odd ones": (scored(_queries_by_pairs), _HEADS + r"|\bq\b|\bQ\b"),
    "odd heads with a window": (scored(_odd_heads_local), _WINDOW),
    "tanh of the scores": (
        scored(lambda w: torch.tanh(w.s).masked_fill(w.hidden, -math.inf)),
        "soft cap|softcap|tanh|cap|clamp",
    ),
    "soft cap of 4 after the mask": (scored(_capped_with_hidden), "soft cap|softcap|tanh|" + _MASK),
    "sink once per split": (lambda w: _sunk(w, 3 * math.exp(0.5)), _SINK),
    "sink with the first value": (
        scored(
            lambda w: torch.where(
                keys_of(w) == 0, torch.logaddexp(w.s, torch.full_like(w.s, 1.5)), w.s
            )
        ),
        _SINK + r"|bias|first key|key 0|key .*(favoured|twice|weight)",
    ),
    "slopes of twice the heads": (scored(lambda w: w.s + _slopes(w, 1, 2 * w.s.shape[1])), _BIAS),
    "slope added for far keys": (scored(lambda w: w.s - 0.3 * _slopes(w, 1, w.s.shape[1])), _BIAS),
    "quarter of the channels rotated once more": (
        scored(
            lambda w: w.scores(
                _turned(w.q, _query_places(w), channels=w.q.shape[-1] // 4),
                _turned(w.k, _key_places(w), channels=w.k.shape[-1] // 4),
            )
        ),
        _ROPE,
    ),
    "places of keys divided by four": (
        scored(
            lambda w: w.scores(
                _turned(w.q, -0.75 * _query_places(w)), _turned(w.k, -0.75 * _key_places(w))
            )
        ),
        _ROPE,
    ),
    "K alone by the head modulo": (scored(lambda w: w.scores(k=_by_modulo(w, w.call.k))), _HEADS),
    "top left mask in later heads": (scored(_top_left), _MASK + "|" + _LOST + "|top left"),
    "accumulator in bf16, tiles of 16": (
        lambda w: _online(w, 16, acc_of=_in_bf16),
        r"accumul|\bo\b.*(bf16|rounded)|partial",
    ),
    "exp2 by one line": (_linear_exp2, _EXP),
    "plain mean of the partials": (
        merged(48, lambda m, l: torch.ones_like(m)),
        r"unweighted|equal weights|mean|average|" + _MERGE,
    ),
    "prefix of 20 in both levels": (
        lambda w: _weighed(w, 1.0 + (keys_of(w) < 20)),
        _TWICE + r"|bias|prefix|cascade|first keys|keys .*(weight|favoured)",
    ),
    "V scale of another head": (
        stored(lambda w, out: _head_factors(w, out.double()).to(out.dtype)),
        _FACTOR + r"|\bscale",
    ),
    "V scales of pages forgotten": (
        valued(_page_factors),
        r"\bV\b.*(scale|factor|scaled)|factor|\bscale|pages?\b",
    ),
    "newest token is that before": (
        lambda w: _both(w, _newest_is_the_one_before(w.k), _newest_is_the_one_before(w.v)),
        _STALE + "|" + _KEYS + "|" + _TWICE,
    ),
    "tail of V from another request": (
        valued(_tail_of_other_request),
        r"request|\bV\b.*(key|stale|read|page|tile)|" + _STALE,
    ),
    "last channels of the head before": (stored(_stale_columns), f"{_CHANNELS}|{_HEADS}|{_STALE}"),
    "V a stage behind": (
        valued(lambda w: read(w.v, _stage_behind(w))),
        r"\bV\b.*(offset|key|tile|block|page|stage|stale|read|order)|offset|stage",
    ),
    "last tile of 64 lost": (scored(_last_tile_dropped), _LOST + "|" + _MASK + "|end"),
    "last key fills the tile": (
        lambda w: _weighed(w, _last_key_fills_the_tile(w)),
        _TWICE + r"|padding|last key|bias|newest|key .*(weight|favoured|times)",
    ),
    "second tile without rescaling": (
        lambda w: _online(w, 16, lambda w, i: torch.tensor(i == 1)),
        r"rescal|running max|\bo\b.*(not|kept)|stale|tile|keys",
    ),
    "upper channels of odd tiles old in V": (
        valued(lambda w: _torn_channels(w.v)),
        r"\bV\b.*(channel|stale|key|tile|read|offset)|channel|" + _STALE + "|race|torn",
    ),
    "lane left out of the sum": (_lane_missing_in_l, r"denominator|\bl\b|\bsum\b|factor|normalis"),
    "maximum of the first tile in l": (
        _one_top_of_another_row,
        r"denominator|\bl\b|\bsum\b|rescal|maximum|normalis|factor",
    ),
    "last sixteen channels not multiplied": (
        scored(_k_lower_channels_only),
        r"channel|\bK\b.*(read as|zero)|\b[qQ]\b.*(zero|channel)|head dim",
    ),
}

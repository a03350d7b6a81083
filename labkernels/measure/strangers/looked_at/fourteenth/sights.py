"""Bugs of masks, windows, soft caps, ALiBi and sinks; most need a call that asks for them."""

import math

import torch

from labkernels.measure.strangers.bugs import Bug
from labkernels.measure.strangers.inputs import Asked
from labkernels.measure.strangers.looked_at.fourteenth import words
from labkernels.measure.strangers.looked_at.fourteenth.frame import (
    cast,
    divided,
    keys,
    rows,
    showing,
    weights,
)
from labkernels.measure.strangers.wrong import Work, attend, distances, places, scored

_WINDOW = Asked(window_left=37)
_CAP, _LOW_CAP = Asked(soft_cap=4.0), Asked(soft_cap=2.0)
_SLOPES, _SINKS = Asked(alibi=True), Asked(sinks=True)
_CAP_AND_SLOPES = Asked(soft_cap=4.0, alibi=True)


def _future(w: Work):
    """True where a causal mask hides a key; nowhere without one."""
    query, key = places(w)
    return key > query if w.call.causal else torch.zeros_like(w.hidden)


def _before(first):
    """A window that begins at first(work, place of the query)."""
    return showing(lambda w: _future(w) | (places(w)[1] < first(w, places(w)[0])))


def _in_block(w: Work, row, size: int = 16):
    """The place of the first (row 0) or of the last row of each query's block."""
    m, n = w.s.shape[-2:]
    return (rows(w) // size * size + row).clamp(max=m - 1) + n - m


def _last_tile_masked(w: Work):
    """Only the last tile of 8 keys that a block of 16 rows needs has a mask."""
    masked = keys(w) // 8 >= _in_block(w, 15) // 8
    return _future(w) & masked


def _by_bytes(w: Work):
    """Bit j of the mask is bit 7 - j % 8 of its byte; bits behind the last key are 0."""
    n = w.k.shape[2]
    bit = keys(w) // 8 * 8 + 7 - keys(w) % 8
    return torch.where(bit < n, w.hidden[:, bit.clamp(max=n - 1)], True) & (keys(w) > 0)


def _rows_not_padded(w: Work):
    """Rows of the mask are a multiple of 8 bytes apart, and are read without gaps."""
    m, n = w.s.shape[-2:]
    stored = torch.nn.functional.pad(w.hidden, (0, -n % 8), value=True).flatten()
    return stored[: m * n].reshape(m, n) & (keys(w) > 0)


def _tree(w: Work):
    """Drafts see those above them in a binary tree alone."""
    m, n = w.s.shape[-2:]
    above = torch.zeros(m, m, dtype=torch.bool)
    for i in range(m):
        j = i
        while j >= 0:
            above[i, j] = True
            j = (j - 1) // 2 if j else -1
    hidden = w.hidden.clone()
    hidden[:, n - m :] |= ~above
    return hidden if w.call.causal else w.hidden


def _pictures(w: Work):
    query, key = places(w)
    return _future(w) & (key // 6 != query // 6)


def _raw(w: Work):
    """Return scores without a cap, slopes or a mask."""
    return w.q @ w.k.mT * w.call.scale


def _hidden(w: Work, s):
    return s.masked_fill(w.hidden, -math.inf)


def _capped(cap, s):
    return cap * torch.tanh(s / cap)


def _cap_after_the_mask(w: Work):
    return torch.where(w.hidden, -w.call.asked.soft_cap, w.s)


def _rational_tanh(w: Work):
    cap = w.call.asked.soft_cap
    x = (_raw(w) / cap).clamp(-3, 3)
    return _hidden(w, cap * x * (27 + x**2) / (27 + 9 * x**2))


def _cap_of_base_two(w: Work):
    return _hidden(w, _capped(w.call.asked.soft_cap * math.log(2), _raw(w)))


def _slopes(w: Work):
    return w.call.slopes.double()[:, None, None]


def _sloped(bias):
    """Other biases: bias(work) takes the place of slope times distance."""
    return scored(lambda w: _hidden(w, _raw(w) - bias(w)))


def _slope_of_packed_rows(w: Work):
    """The head of row m * group + g is taken as the row by M."""
    m, group, h = w.s.shape[2], w.call.group, w.s.shape[1]
    head = torch.arange(h)[:, None]
    row = torch.arange(m) * group + head % group
    taken = head // group * group + row // m
    return w.call.slopes.double()[taken][..., None] * distances(w.s)


def _slope_of_a_power(w: Work):
    """Slopes for the next power of two of heads."""
    h = w.s.shape[1]
    more = 2 ** math.ceil(math.log2(h + 1))
    slope = torch.exp2(-8 * torch.arange(1, h + 1, dtype=torch.float64) / more)
    return slope[:, None, None] * distances(w.s)


def _slopes_inside_the_cap(w: Work):
    s = _raw(w) - _slopes(w) * distances(w.s)
    return _hidden(w, _capped(w.call.asked.soft_cap, s))


def _sink(change):
    """Other sinks: change(work, logits [Hq, 1, 1]) returns the logits."""

    def bug(w: Work):
        logits = change(w, w.call.sinks.double()[:, None, None])
        return attend(w.s, w.v, w.call.q.dtype, sinks=logits.expand(-1, 1, 1)[:, 0, 0])

    return bug


def _sink_with_a_value(w: Work):
    p = weights(w.s)
    e = torch.exp(w.call.sinks.double()[:, None, None] - w.s.amax(-1, keepdim=True))
    return divided(w, cast(w, p) @ w.v + e * w.v[:, :, :1], p.sum(-1, keepdim=True) + e)


def _sink_of_the_first_tile(w: Work):
    """The sink's term is not rescaled after the first tile of 16 keys."""
    p = weights(w.s)
    top = w.s[..., :16].amax(-1, keepdim=True)
    top = torch.where(top == -math.inf, w.s.amax(-1, keepdim=True), top)
    e = torch.exp(w.call.sinks.double()[:, None, None] - top)
    return divided(w, cast(w, p) @ w.v, p.sum(-1, keepdim=True) + e)


WRONG: dict[str, tuple[Bug, str]] = {
    "last tile of a block alone masked": (showing(_last_tile_masked), words.SEEN),
    "bits of the mask in reverse in each byte": (showing(_by_bytes), words.ORDER),
    "rows of the mask read without their padding": (showing(_rows_not_padded), words.HIDDEN),
    "drafts as a binary tree": (showing(_tree), words.HIDDEN),
    "tokens of a picture see each other": (showing(_pictures), words.MASK),
    "window begins with the tile behind": (
        _before(lambda w, at: torch.minimum((at - 37 + 15) // 16 * 16, at)),
        words.HIDDEN,
    ),
    "window of a block by its first row": (_before(lambda w, at: _in_block(w, 0) - 37), words.SEEN),
    "window of a block by its last row": (
        _before(lambda w, at: torch.minimum(_in_block(w, 15) - 37, at)),
        words.HIDDEN,
    ),
    "window counted from the first query, not from the last key": (
        _before(lambda w, at: rows(w) - 37),
        f"{words.MASK}|window",
    ),
    "cap put over the mask": (scored(_cap_after_the_mask), r"hidden keys|after the mask"),
    "tanh of the cap as a quotient": (scored(_rational_tanh), r"soft cap by|by a quotient"),
    "cap over scores in powers of two": (scored(_cap_of_base_two), r"soft cap of another"),
    "slopes of packed rows by another division": (_sloped(_slope_of_packed_rows), words.SLOPES),
    "slopes for a power of two of heads": (_sloped(_slope_of_a_power), words.SLOPES),
    "distance from the first row of the block": (
        _sloped(lambda w: _slopes(w) * (_in_block(w, 0) - keys(w)).clamp(min=0)),
        words.DISTANCE,
    ),
    "distance inside the split of 64 keys": (
        _sloped(lambda w: _slopes(w) * (places(w)[0] - keys(w) % 64)),
        f"{words.DISTANCE}|(?<!with )keys by a|weights of keys by|bias of",
    ),
    "slopes times scores of base two": (
        _sloped(lambda w: math.log(2) * _slopes(w) * distances(w.s)),
        f"{words.SLOPES}|{words.DISTANCE}",
    ),
    "slopes inside the cap": (scored(_slopes_inside_the_cap), words.CAP_OF_BIAS),
    "sink with the first key's value": (_sink_with_a_value, r"sinks? with|value of the first key"),
    "sink counted in each of three splits": (
        _sink(lambda w, x: x + math.log(3)),
        words.SINK_SPLITS,
    ),
    "sink of the first tile's maximum": (_sink_of_the_first_tile, words.SINK_RESCALED),
    "sink as a power of two": (_sink(lambda w, x: x * math.log(2)), words.SINKS),
}
ASKED: dict[str, Asked] = (
    {name: _WINDOW for name in WRONG if name.startswith("window")}
    | {name: _CAP for name in WRONG if "cap" in name.split()}
    | {name: _SLOPES for name in WRONG if name.startswith(("slopes", "distance"))}
    | {name: _SINKS for name in WRONG if name.startswith("sink")}
    | {"cap put over the mask": _LOW_CAP, "slopes inside the cap": _CAP_AND_SLOPES}
)

"""Bugs of the tenth set in positions and scales: RoPE, YaRN, padded dimensions, logarithms."""

import math

import torch

from labkernels.measure.strangers.bugs import Bug
from labkernels.measure.strangers.looked_at.tenth.tiles import of_heads
from labkernels.measure.strangers.wrong import Work, attend, keys_of, places, scored, valued

_BASE = 1e4


def _angles(place, dim: int, base: float = _BASE):
    half = dim // 2
    return place[:, None] * base ** (-torch.arange(half, dtype=torch.float64) / half)


def _turned(x, angle):
    """Turn the halves of each row by angles [rows, D / 2]."""
    half = x.shape[-1] // 2
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)


def _turned_pairs(x, angle):
    """Turn neighbouring channels of each row by angles."""
    a, b = x[..., ::2], x[..., 1::2]
    turned = a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()
    return torch.stack(turned, -1).flatten(-2)


def _of_queries(w: Work):
    return places(w)[0][:, 0].double()


def _of_keys(w: Work):
    return keys_of(w).double()


def _other_base(w: Work, base: float):
    """Rotations by the model's base taken back, and by another one added."""
    dim = w.q.shape[-1]

    def change(x, at):
        return _turned(_turned(x, -_angles(at, dim)), _angles(at, dim, base))

    return w.scores(q=change(w.q, _of_queries(w)), k=change(w.k, _of_keys(w)))


def _of_page(w: Work, size: int = 16):
    """Keys at places that begin anew in each page."""
    key = _of_keys(w)
    return w.scores(k=_turned(w.k, _angles(key % size - key, w.k.shape[-1])))


def _last_page_unturned(w: Work, size: int = 16):
    """Keys of the last page, cached before their rotation."""
    key = _of_keys(w)
    late = key >= (len(key) - 1) // size * size
    return w.scores(k=_turned(w.k, _angles(torch.where(late, -key, 0.0), w.k.shape[-1])))


def _place_in_chunk(w: Work):
    """Queries at their places in the chunk, as if no key came before it."""
    first = w.k.shape[2] - w.q.shape[2]
    at = torch.full((w.q.shape[2],), -float(max(first, 3)), dtype=torch.float64)
    return w.scores(q=_turned(w.q, _angles(at, w.q.shape[-1])))


def _of_one_request(w: Work):
    """Queries at the places of a request that has five tokens more."""
    q = w.q.clone()
    angle = _angles(torch.full((q.shape[2],), 5.0, dtype=torch.float64), q.shape[-1])
    q[1:] = _turned(q, angle)[1:]
    return w.scores(q=q)


def _keys_once_more(w: Work):
    """Keys turned when they were cached, and once more when they are read."""
    return w.scores(k=_turned_pairs(w.k, _angles(_of_keys(w), w.k.shape[-1])))


def _values_turned(w: Work):
    """V turned with K, as by one call for both."""
    return _turned(w.v, _angles(_of_keys(w), w.v.shape[-1]))


def _compressed(w: Work):
    """Places divided by 4 for the newest half of the keys, as after a change of the scaling."""
    key = _of_keys(w)
    late = key >= len(key) // 2
    return w.scores(k=_turned(w.k, _angles(torch.where(late, -0.75 * key, 0.0), w.k.shape[-1])))


def _late_scale(w: Work, factor: float):
    """Another scale for the second half of the keys, as in one of two kernels."""
    late = keys_of(w) >= w.k.shape[2] // 2
    return torch.where(late, w.s * factor, w.s)


def _scale_of_length(w: Work):
    """Queries times log_n of their place, as in models with a longer context."""
    n = torch.log(places(w)[0].double() + 2) / math.log(32)
    return w.s * n


def _of_pages(w: Work):
    """Scales of K by page of 32, of which only the first is read."""
    size = 1 + 0.2 * torch.arange(w.k.shape[2]).div(32, rounding_mode="floor") % 0.5
    return w.scores(k=w.k / size[:, None])


def _low_rank(w: Work, lost: int = 8):
    """The part of the head without positions, scaled as if it were the whole."""
    d = w.q.shape[-1]
    q = w.q.clone()
    q[..., : d - lost] *= (d / (d - lost)) ** 0.5
    q[..., d - lost :] = 0
    return w.scores(q=q)


def _heads_scaled(w: Work):
    """A scale by head, for a model that learned one: that of the last head for all."""
    heads = w.q.shape[1]
    return w.s * torch.linspace(0.75, 1.2, heads, dtype=torch.float64)[:, None, None]


def _doubled_group(w: Work):
    """K of the KV head added for each head of a group that two warps share."""
    k = of_heads(w, w.call.k)
    first = torch.arange(k.shape[1]) % max(2, w.call.group) == 0
    return attend(w.scores(k=torch.where(first[:, None, None], 2 * k, k)), w.v, w.call.q.dtype)


_ROPE = "RoPE|rotation"
WRONG: dict[str, tuple[Bug, str]] = {
    "rotations of base 500000": (scored(lambda w: _other_base(w, 5e5)), _ROPE),
    "rotations of base 100": (scored(lambda w: _other_base(w, 1e2)), _ROPE),
    "places that begin anew in each page": (scored(_of_page), f"{_ROPE}|K read"),
    "the last page without rotations": (scored(_last_page_unturned), f"{_ROPE}|K read"),
    "queries at their places in the chunk": (scored(_place_in_chunk), f"{_ROPE}|offset of Q"),
    "places of a longer request": (scored(_of_one_request), f"{_ROPE}|offset of Q"),
    "keys turned again, in pairs": (scored(_keys_once_more), _ROPE),
    "V turned with K": (valued(_values_turned), "RoPE"),
    "newer places divided by 4": (scored(_compressed), f"{_ROPE}|K read"),
    "the scale of a head padded to 128": (
        scored(lambda w: w.s * (w.q.shape[-1] / 128) ** 0.5),
        "scale",
    ),
    "the scale 1 / D": (scored(lambda w: w.s * w.q.shape[-1] ** -0.5), "scale"),
    "log2 e in the scale and in the exponent": (scored(lambda w: w.s * math.log2(math.e)), "scale"),
    "log2 e in neither scale nor exponent": (scored(lambda w: w.s * math.log(2)), "scale"),
    "YaRN's factor twice": (scored(lambda w: w.s * (0.1 * math.log(8) + 1) ** 2), "scale"),
    "another scale in the second half of the keys": (
        scored(lambda w: _late_scale(w, 0.7)),
        "scale|K by a factor|keys by a factor|factor for each|K read with|K with",
    ),
    "a scale that grows with the place": (
        scored(_scale_of_length),
        "scale|factor for each|scores have|Q is|Q divided|Q by",
    ),
    "scales of K by page, the first for all": (
        scored(_of_pages),
        "K by a factor|factor for each|K divided|K with|scale",
    ),
    "the last 8 channels left out, the rest scaled": (
        scored(_low_rank),
        "channels of Q or K|channel",
    ),
    "scales of heads that a model never had": (
        scored(_heads_scaled),
        "scale|factor for each",
    ),
    "K twice in the first head of a group": (_doubled_group, "scale|K by a factor|factor for each"),
}
"""Name: the bug, and a pattern that a right name for it matches."""

"""Bugs of the fifth set, each with a pattern that a right name for it matches.

Some are after reports in public: a table of tokens that is read as one of pages (SGLang 23757), an
index of pages that ends after four (Mirage 575), rows that leave no room for their scales
(kvcached 424), a chunk whose rows see each other (tt-metal 48899), a pool that is read without its
table (ssd 23), a scale that is dropped on a fast path (vLLM 42580). `bugs_of_keys` has those of
keys and masks.
"""

import math

import torch

from labkernels.measure.strangers.bugs import Bug, rope
from labkernels.measure.strangers.looked_at.fifth.bugs_of_keys import KEYS
from labkernels.measure.strangers.wrong import (
    Work,
    attend,
    keys_of,
    merged,
    places,
    scored,
    stored,
    valued,
)

_BIAS = "bias|ALiBi|position"
_ROPE = "RoPE|rotation"
_SHAPE = "weights|exp|function"


def _weighed(w: Work, function):
    """Return the output with weights that are another function of the scores minus the maximum."""
    p = function(w.s - w.s.amax(-1, keepdim=True)).masked_fill(w.s == -math.inf, 0.0)
    return (p @ w.v / p.sum(-1, keepdim=True)).to(w.call.q.dtype)


def _distance(w: Work):
    query, key = places(w)
    return (query - key).double()


def _first_half_twice(w: Work):
    n = w.q.shape[-1]
    return w.scores(q=w.q * torch.where(torch.arange(n) < n // 2, 2.0, 1.0))


def _unit(x):
    return x / x.pow(2).mean(-1, keepdim=True).clamp(min=1e-30).sqrt()


def _mean_of_the_group(w: Work):
    q = w.q.unflatten(1, (-1, w.call.group)).mean(2, keepdim=True)
    return w.scores(q=q.expand(-1, -1, w.call.group, -1, -1).flatten(1, 2))


def _first_keys_not_rotated(w: Work, n: int = 32):
    half = w.k.shape[-1] // 2
    angle = -torch.arange(w.k.shape[2])[:, None] * 1e4 ** (
        -torch.arange(half, dtype=torch.float64) / half
    )
    a, b = w.k.chunk(2, -1)
    back = torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)
    return w.scores(k=torch.where((keys_of(w) < n)[:, None], back, w.k))


def _slow_ones_slower(w: Work):
    """The later half of the frequencies divided by 4, as an interpolation by parts has it."""
    half = w.q.shape[-1] // 2
    powers = 1e4 ** (-torch.arange(half, dtype=torch.float64) / half)
    change = torch.where(torch.arange(half) < half // 2, 0.0, -0.75 * powers)

    def turned(x, first):
        angle = (torch.arange(x.shape[2])[:, None] + first) * change
        a, b = x.chunk(2, -1)
        return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)

    return w.scores(turned(w.q, w.k.shape[2] - w.q.shape[2]), turned(w.k, 0))


def _of_the_next_request(m, l):
    lse = (m + l.clamp(min=1e-300).log()).roll(1, 1)
    return torch.exp(lse - lse.amax(0))


def _later_heads_two_queries_off(w: Work, out):
    out, half = out.clone(), out.shape[1] // 2
    out[:, half:] = out[:, half:].roll(2, 2)
    return out


def _upper_half_four_rows_off(w: Work, out):
    out, half = out.clone(), out.shape[-1] // 2
    out[..., half:] = out[..., half:].roll(4, 2)
    return out


def _first_three_of_each_sixteen(w: Work, out):
    lost = (torch.arange(out.shape[2]) % 16 < 3) & (torch.arange(out.shape[2]) > 2)
    return out.masked_fill(lost[:, None], 0.0)


def _even_keys_in_l(w: Work):
    p = torch.exp(w.s - w.s.amax(-1, keepdim=True))
    l = (p * (keys_of(w) % 2 == 0)).sum(-1, keepdim=True)
    return (p @ w.v / l.clamp(min=1e-300)).to(w.call.q.dtype)


def _l_of_the_next_head(w: Work):
    p = torch.exp(w.s - w.s.amax(-1, keepdim=True))
    return (p @ w.v / p.sum(-1, keepdim=True).roll(-1, 1)).to(w.call.q.dtype)


def _hadamard(out):
    n, x = out.shape[-1], out.double()
    step = 1
    while step < n:
        x = x.unflatten(-1, (-1, 2, step))
        x = torch.stack([x[..., 0, :] + x[..., 1, :], x[..., 0, :] - x[..., 1, :]], -2).flatten(-3)
        step *= 2
    return (x / n**0.5).to(out.dtype)


def _eight_bits_by_row(out):
    step = out.double().abs().amax(-1, keepdim=True).clamp(min=1e-30) / 127
    return (torch.round(out.double() / step) * step).to(out.dtype)


def _e4m3_by_page(w: Work, size: int = 16):
    v = w.v.clone()
    for first in range(0, v.shape[2], size):
        page = v[:, :, first : first + size]
        step = page.abs().amax((2, 3), keepdim=True).clamp(min=1e-30) / 448
        v[:, :, first : first + size] = (page / step).float().to(
            torch.float8_e4m3fn
        ).double() * step
    return v


_OTHER: dict[str, tuple[Bug, str]] = {
    "first half of q doubled": (scored(_first_half_twice), "channels"),
    "norm of q applied again": (scored(lambda w: w.scores(q=_unit(w.q))), "scale|[qQ] |quer"),
    "norm of k applied again": (scored(lambda w: w.scores(k=_unit(w.k))), "scale|K |key"),
    "scale by the logarithm of the length": (
        scored(lambda w: w.s * math.log(w.s.shape[-1]) / math.log(512)),
        "scale",
    ),
    "bias of the newest": (scored(lambda w: w.s + 0.015 * keys_of(w)), _BIAS + "|each key"),
    "bias that comes around": (
        scored(lambda w: w.s + torch.cos(_distance(w) * 2 * math.pi / 12)),
        _BIAS + "|each (key|distance)",
    ),
    "bias by squares of distances": (
        scored(lambda w: w.s - _distance(w) ** 2 / 1500),
        _BIAS + "|each (key|distance)",
    ),
    "V rotated too": (
        valued(lambda w: rope(w.v, interleaved=False, base=1e4)),
        _ROPE + "|V .*(turned|rotated)",
    ),
    "first 32 keys not rotated": (scored(_first_keys_not_rotated), _ROPE),
    "slow rotations slower": (scored(_slow_ones_slower), _ROPE),
    "one q for a group": (scored(_mean_of_the_group), "[qQ] |quer|mean"),
    "gated by a sigmoid": (
        scored(lambda w: w.s + torch.nn.functional.logsigmoid(w.s)),
        _SHAPE,
    ),
    "softplus for exp": (
        lambda w: _weighed(w, lambda x: torch.nn.functional.softplus(x + 2.0)),
        _SHAPE,
    ),
    "squares for exp": (
        lambda w: _weighed(w, lambda x: (1 + x / 6).clamp(min=0.0) ** 2),
        _SHAPE + "|dropped",
    ),
    "base 2 below the mean": (
        scored(lambda w: torch.where(w.s < 0, w.s * math.log(2), w.s)),
        _SHAPE + "|scale",
    ),
    "lse of the next request": (merged(48, _of_the_next_request), "merge|weighted|lse|split"),
    "pairs of queries averaged": (
        stored(
            lambda w, out: (
                (out.double() + out.double().roll(1, 2)) / 2 if out.shape[2] > 1 else out
            ).to(out.dtype)
        ),
        "added|sum|mean|average",
    ),
    "later heads two queries off": (stored(_later_heads_two_queries_off), "another row|quer"),
    "upper channels four rows off": (
        stored(_upper_half_four_rows_off),
        "another row|quer|channels",
    ),
    "three rows of each 16 not written": (
        stored(_first_three_of_each_sixteen),
        "never written|uninitialised",
    ),
    "even keys alone in l": (_even_keys_in_l, "denominator"),
    "l of the next head": (_l_of_the_next_head, "denominator|factor"),
    "Hadamard product not undone": (
        stored(lambda w, out: _hadamard(out)),
        "channel|rotation|Hadamard",
    ),
    "scales of channels of K forgotten": (
        scored(
            lambda w: w.scores(k=w.k * (1 + 0.5 * torch.sin(torch.arange(w.k.shape[-1]) * 1.3)))
        ),
        "channels",
    ),
    "output in 8 bits by row": (
        stored(lambda w, out: _eight_bits_by_row(out)),
        "rounded|int8|steps|8 bits",
    ),
    "V in e4m3, scale by page": (valued(_e4m3_by_page), "V in|V .*e4m3"),
    "scale of K dropped, that of V twice": (
        lambda w: (attend(w.s * 2, w.v, w.call.q.dtype).double() / 2).to(w.call.q.dtype),
        "scale|factor|common mode",
    ),
}
WRONG: dict[str, tuple[Bug, str]] = KEYS | _OTHER
"""Name: the bug, and a pattern that a right name for it matches."""

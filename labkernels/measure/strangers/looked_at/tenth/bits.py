"""Bugs of the tenth set in formats: quantised K, V, Q and P, narrow scores, sums and outputs."""

import math
from collections.abc import Callable

import torch

from labkernels.measure.strangers.bugs import Bug
from labkernels.measure.strangers.looked_at.tenth.tiles import (
    DIVISOR,
    FACTOR,
    MERGE,
    divided,
    even_cuts,
    finite,
    joined,
    online,
    softmax_parts,
    split,
    used,
)
from labkernels.measure.strangers.wrong import Work, keys_of, scored, stored, valued

_K_IN, _V_IN = "K in (?!another)", "(?<!and )V in (?!another)"
_E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64)


def _fp(x, dtype):
    return x.to(dtype).double()


def _e4m3(x):
    return _fp(x.clamp(-448, 448).float(), torch.float8_e4m3fn)


def _grid(x, step):
    """Numbers in whole steps; a step of 0 keeps 0."""
    return torch.where(step == 0, 0.0, torch.round(x / step.clamp(min=1e-300)) * step)


def _int(x, bits: int, dims):
    """Numbers in a signed grid whose step is that of the largest along some dimensions."""
    return _grid(x, x.abs().amax(dims, keepdim=True) / (2 ** (bits - 1) - 1))


def _nvfp4(x, size: int = 8):
    """E2M1 with a scale for each block of channels."""
    blocks = x.reshape(*x.shape[:-1], -1, math.gcd(size, x.shape[-1]))
    scale = blocks.abs().amax(-1, keepdim=True) / 6
    ratio = torch.where(scale == 0, 0.0, blocks / scale.clamp(min=1e-300))
    near = (ratio.abs()[..., None] - _E2M1).abs().argmin(-1)
    return (_E2M1[near] * ratio.sign() * scale).reshape(x.shape)


def _mx(x, size: int = 8):
    """E4M3 with exponents shared by blocks, one too small, so that the largest saturate."""
    blocks = x.reshape(*x.shape[:-1], -1, math.gcd(size, x.shape[-1]))
    top = blocks.abs().amax(-1, keepdim=True).clamp(min=1e-300)
    scale = torch.exp2(torch.floor(torch.log2(top)) - 9)
    return (_e4m3(blocks / scale) * scale).reshape(x.shape)


def _pages(x, change: Callable, size: int = 16):
    """Change each page of a tensor's keys: change(page, page before)."""
    pages = list(x.split(size, 2))
    before = [pages[0], *pages[:-1]]
    return torch.cat([change(a, b) for a, b in zip(pages, before, strict=True)], 2)


def _k(change: Callable) -> Callable:
    return scored(lambda w: w.scores(k=change(w, w.k)))


def _q(change: Callable) -> Callable:
    return scored(lambda w: w.scores(q=change(w, w.q)))


def _v(change: Callable) -> Callable:
    return valued(lambda w: change(w, w.v))


def _p(change: Callable) -> Callable:
    """A bug in P relative to the maximum, in the second product alone."""

    def bug(w: Work):
        p, l, _ = softmax_parts(w)
        return divided(w, change(p) @ w.v, l)

    return bug


def _power(p):
    """The largest powers of two that are at most P."""
    return torch.exp2(torch.floor(torch.log2(p.clamp(min=2.0**-60))))


def _size(x, dims):
    return x.abs().amax(dims, keepdim=True)


def _page_scale(page, before):
    """A page in int8, times the scale of the page before."""
    step, other = _size(page, (2, 3)), _size(before, (2, 3))
    return _grid(page, step / 127) * other / step.clamp(min=1e-300)


def _head_scales(w: Work, x):
    """The scale of the first head for all heads, with scales like those of a checkpoint."""
    scale = 1 + 0.11 * (torch.arange(x.shape[1]) // w.call.group)[:, None, None]
    return x * 0.9 / scale


def _clipped(x, share: float = 0.4):
    """Numbers clipped where a scale from other tokens ends."""
    top = share * _size(x, (1, 2, 3))
    return torch.minimum(torch.maximum(x, -top), top)


def _straight_exp(w: Work):
    """2^x with a straight line between whole numbers, in both sums."""
    x = finite(w.s - finite(w.s.amax(-1, keepdim=True))) * math.log2(math.e)
    whole = x.floor()
    p = (torch.exp2(whole) * (1 + x - whole)).masked_fill(w.s == -math.inf, 0.0)
    return divided(w, used(p, w) @ w.v, p.sum(-1, keepdim=True))


def _table_exp(w: Work):
    """2^x from a table with 8 entries between whole numbers."""
    m = finite(w.s.amax(-1, keepdim=True))
    p = torch.exp2(torch.floor((w.s - m) * math.log2(math.e) * 8) / 8)
    return divided(w, used(p, w) @ w.v, p.sum(-1, keepdim=True))


def _dropped(w: Work, least: float):
    """Weights below a threshold that count in neither sum."""
    p, _, _ = softmax_parts(w)
    p = torch.where(p < least, 0.0, p)
    return divided(w, used(p, w) @ w.v, p.sum(-1, keepdim=True))


def _scale_of_l(w: Work):
    """P times 448 in E4M3 and the sum of the rounded ones, of which the output loses a part."""
    p, l, _ = softmax_parts(w)
    return divided(w, _e4m3(p * 448) @ w.v / 448, l * 448 / 400)


def _narrow_l(w: Work, dtype, size: int = 8):
    """A sum of weights in a narrow format, for tiles of some keys."""
    p, _, _ = softmax_parts(w)
    l = torch.zeros(*p.shape[:3], 1, dtype=torch.float64)
    for part in p.split(size, -1):
        l = _fp(l + part.sum(-1, keepdim=True), dtype)
    return divided(w, used(p, w) @ w.v, l)


def _narrow_partials(w: Work, change: Callable, splits: int = 6):
    """Outputs of splits, divided, in a narrow format."""
    m, l, o = split(w, even_cuts(w.s.shape[-1], splits))
    return joined(
        w, m, l, change(o / l.clamp(min=1e-300)) * l, torch.exp(m - finite(m.amax(0))) * l
    )


def _narrow_lse(w: Work, splits: int = 4):
    """Log-sum-exps of splits in bf16."""
    m, l, o = split(w, even_cuts(w.s.shape[-1], splits))
    lse = _fp(m + torch.log(l), torch.bfloat16)
    return joined(w, m, l, o, torch.exp(lse - finite(lse.amax(0))))


def _page_means(w: Work, k):
    """K less the mean of each page, of which nobody adds the part of the scores back."""
    return _pages(k, lambda page, _: page - page.mean(2, keepdim=True), 32)


def _zero_points(w: Work, k):
    """K with the zero point of each token's grid left in."""
    middle = 0.5 * (k.amax(-1, keepdim=True) + k.amin(-1, keepdim=True))
    return k + middle


def _smooth(w: Work, v):
    """V less the mean of its head, which nobody adds back."""
    return v - v.mean(2, keepdim=True)


def _by_channel(w: Work, x):
    """A weight for each channel, once more."""
    return x * torch.linspace(0.7, 1.4, x.shape[-1], dtype=torch.float64)


def _late_tokens(w: Work, change: Callable, x):
    """Only the newest 24 keys changed: the rest of the cache is older."""
    new = (keys_of(w) >= w.k.shape[2] - 24)[:, None]
    return torch.where(new, change(x), x)


def _out(change: Callable) -> Callable:
    return stored(lambda w, out: change(out.double()).to(out.dtype))


def _saturated(out, share: float = 0.5):
    top = share * out.abs().amax()
    return out.clamp(-top, top)


def _narrow(dtype) -> Callable:
    return lambda step, o: _fp(o, dtype)


WRONG: dict[str, tuple[Bug, str]] = {
    "P in E4M3 without a scale": (_p(lambda p: _e4m3(p)), "P in"),
    "P in E5M2, times 2^8": (
        _p(lambda p: _fp(p.float() * 256, torch.float8_e5m2) / 256),
        "P in",
    ),
    "P in 127 steps": (_p(lambda p: torch.round(p * 127) / 127), "P in|P truncated|steps"),
    "P cut off to 5 bits": (
        _p(lambda p: torch.floor(p * 2.0**5 / _power(p)) * _power(p) / 2**5),
        "P truncated|P in|P was",
    ),
    "the scale of P once too little in l": (_scale_of_l, f"{FACTOR}|P in"),
    "K in int4 by token": (_k(lambda w, k: _int(k, 4, -1)), _K_IN),
    "V in int4 by channel": (_v(lambda w, v: _int(v, 4, 2)), _V_IN),
    "K in NVFP4": (_k(lambda w, k: _nvfp4(k)), _K_IN),
    "V in NVFP4": (_v(lambda w, v: _nvfp4(v)), _V_IN),
    "V in MXFP8 that saturates": (_v(lambda w, v: _mx(v)), f"{_V_IN}|V clipped|out clipped"),
    "K in int8 with the scale of the page before": (
        _k(lambda w, k: _pages(k, _page_scale)),
        f"K by a factor|factor for each|{_K_IN}|K read with|weights of keys|scores have|K with",
    ),
    "V in int8 with the scale of the page before": (
        _v(lambda w, v: _pages(v, _page_scale)),
        f"V by a factor|factor for each|{_V_IN}|V read with|V with",
    ),
    "scales of K by head, one for all": (
        _k(_head_scales),
        "scale|K by a factor|factor for each|K divided",
    ),
    "scales of V by head, one for all": (_v(_head_scales), f"V by a factor|{FACTOR}"),
    "Q in E4M3": (_q(lambda w, q: _e4m3(q)), "Q in|Q and K in|q rounded|Q is|^Q "),
    "Q in int4 by token": (_q(lambda w, q: _int(q, 4, -1)), "Q in|Q and K in|q rounded|^Q "),
    "Q clipped by a scale of other tokens": (_q(lambda w, q: _clipped(q, 0.3)), "Q clipped"),
    "K clipped by a scale of other tokens": (_k(lambda w, k: _clipped(k, 0.3)), "K clipped"),
    "V clipped by a scale of other tokens": (
        _v(lambda w, v: _clipped(v, 0.3)),
        f"V clipped|{_V_IN}|out clipped",
    ),
    "K's mean by page not added back": (
        _k(_page_means),
        "K less its mean|K without|mean|K with",
    ),
    "K's zero points left in": (_k(_zero_points), f"K with|scores have|K read with|{_K_IN}|a bias"),
    "V's mean not added back": (_v(_smooth), "V less its mean|the mean of V|V without"),
    "V with a zero point of an eighth": (
        _v(lambda w, v: v + 0.125),
        "a constant|an offset of V|V with",
    ),
    "a norm's weights on q twice": (
        _q(_by_channel),
        "channel|factor for each|Q is|Q by|Q times|^Q ",
    ),
    "the newest keys of V in int4": (
        _v(lambda w, v: _late_tokens(w, lambda x: _int(x, 4, -1), v)),
        _V_IN,
    ),
    "scores in steps of a sixteenth": (
        scored(lambda w: torch.round(w.s * 16) / 16),
        "scores rounded|scores in|scores have|steps|^S in",
    ),
    "exponents in whole eighths": (_table_exp, "scores rounded|scores have|exp2|steps|weights are"),
    "a straight line for exp2": (_straight_exp, "exp2"),
    "weights below 2^-5 dropped": (lambda w: _dropped(w, 2.0**-5), "small weights|dropped"),
    "l in bf16 by 8 keys": (
        lambda w: _narrow_l(w, torch.bfloat16),
        f"l accumulated|{DIVISOR}|^l ",
    ),
    "o in E5M2 after tiles of 64": (
        online(64, kept=_narrow(torch.float8_e5m2)),
        "o accumulated|partial outputs",
    ),
    "o in bf16 after tiles of 8": (
        online(8, kept=_narrow(torch.bfloat16)),
        "o accumulated|partial outputs",
    ),
    "partial outputs in E4M3": (
        lambda w: _narrow_partials(w, _e4m3),
        "partial outputs|o accumulated",
    ),
    "log-sum-exps of splits in bf16": (_narrow_lse, f"{MERGE}|wrong weights|lse"),
    "the output staged in bf16": (
        _out(lambda out: _fp(out, torch.bfloat16)),
        "out was rounded|out was cut|out in|partial outputs",
    ),
    "the output staged in E4M3": (_out(_e4m3), "out was rounded|out was cut|out in|partial outp"),
    "the output saturated at half its largest": (_out(_saturated), "out clipped|clipped"),
}
"""Name: the bug, and a pattern that a right name for it matches."""

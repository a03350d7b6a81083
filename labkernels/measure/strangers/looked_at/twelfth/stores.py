"""Bugs in formats and epilogues: bits of P, K and V, sums, quotients, channels and rows stored."""

import torch

from labkernels.measure.strangers.bugs import Bug
from labkernels.measure.strangers.looked_at.twelfth.frame import (
    K_IN,
    SUM,
    V_IN,
    V_READ,
    V_SCALE,
    cast,
    put,
    walked,
    weights,
)
from labkernels.measure.strangers.wrong import (
    Work,
    keys_of,
    scored,
    stored,
    valued,
)


def _rounded_to(x, steps: float, dims):
    """Return x rounded to `steps` numbers on each side of 0, with one scale for axes `dims`."""
    scale = x.abs().amax(dims, keepdim=True).clamp(min=1e-30) / steps
    return torch.round(x / scale) * scale


def _in_groups(x, steps: float, size: int):
    """Return the same with a scale for each `size` channels."""
    return _rounded_to(x.unflatten(-1, (-1, size)), steps, -1).flatten(-2)


def _coarse_p(change) -> Bug:
    """Return a bug in which P is rounded for the product alone."""

    def bug(w: Work):
        p = weights(w)
        return put(w, change(p) @ w.v, p.sum(-1, keepdim=True))

    return bug


def _swizzled_scales(w: Work):
    """Blocks of 16 channels of V have scales; those of four tokens come in another order."""
    block = w.v.unflatten(-1, (-1, 16))
    scale = block.abs().amax(-1, keepdim=True).clamp(min=1e-30)
    key = keys_of(w)
    other = torch.where(
        key // 4 < len(key) // 4, key // 4 * 4 + (key % 4) * 2 % 4 + key % 4 // 2, key
    )
    return (block * scale[:, :, other] / scale).flatten(-2)


def _zero_points_of_v(w: Work):
    """V is in signed bytes, and its zero points are for unsigned ones, 128 steps off."""
    return w.v + 128 / 255 * (w.v.amax(2, keepdim=True) - w.v.amin(2, keepdim=True))


def _sum_in_few_bits(w: Work):
    """The denominator grows by four keys at a time in bf16, and stops to grow."""
    p = cast(w, weights(w))
    l = torch.zeros_like(p[..., :1])
    for first in range(0, p.shape[-1], 4):
        more = p[..., first : first + 4].sum(-1, keepdim=True)
        l = (l + more).to(torch.bfloat16).double()
    return put(w, p @ w.v, l)


def _cut_sums(t):
    """o is cut to the bits of bf16 after each tile."""
    t.o = (t.o.float().view(torch.int32) & ~0xFFFF).view(torch.float32).double()


def _inverse_from_a_table(w: Work):
    """1 / l comes from a table of eight numbers between powers of two."""
    p = weights(w)
    l = p.sum(-1, keepdim=True)
    power = torch.exp2(torch.log2(l).floor())
    return put(w, cast(w, p) @ w.v, (torch.floor(8 * l / power) / 8 + 1 / 16) * power)


def _one_more(w: Work):
    p = weights(w)
    return put(w, cast(w, p) @ w.v, p.sum(-1, keepdim=True) + 1)


def _clipped(w: Work, out):
    """Outputs are clipped at a third of the largest of each head, as a scale for 8 bits does."""
    top = out.double().abs().amax((-1, -2), keepdim=True) / 3
    return out.double().clamp(min=-top, max=top).to(out.dtype)


def _with_query(w: Work, out):
    """The buffer holds Q, and the output is added to a tenth of it."""
    n = min(out.shape[-1], w.q.shape[-1])
    out = out.double()
    out[..., :n] += 0.1 * w.q[..., :n]
    return out.to(w.call.q.dtype)


def _fragments(w: Work, out):
    """Pairs of each 16 channels come in the order of an accumulator's registers."""
    return out.unflatten(-1, (-1, 2, 4, 2)).transpose(-2, -3).flatten(-4)


def _odd_heads(out, change):
    odd = (torch.arange(out.shape[1]) % 2 == 1)[:, None, None]
    return torch.where(odd, change(out), out)


def _last_of_four(w: Work, out):
    """Row 3 of each four is stored from the registers of row 2."""
    row = torch.arange(out.shape[2])
    return out[:, :, row - (row % 4 == 3).long()]


def _no_query(w: Work):
    """The rows after the last whole four read Q as 0."""
    row = torch.arange(w.q.shape[2])
    return w.scores(q=torch.where((row >= len(row) // 4 * 4)[:, None], 0 * w.q, w.q))


def _stale_rows(w: Work, out):
    """Every third row holds what the block of another head wrote."""
    row = torch.arange(out.shape[2])[:, None]
    return torch.where(row % 3 == 0, out.roll(1, 1), out)


def _e5m2(x):
    return x.float().to(torch.float8_e5m2).double()


def _swapped(w: Work, out):
    """The halves of 32 bits are exchanged in the upper four of eight channels."""
    channel = torch.arange(out.shape[-1])
    return out[..., torch.where(channel % 8 >= 4, channel ^ 1, channel)]


_LAYOUT = "out(?:put)? in another layout"
WRONG: dict[str, tuple[Bug, str]] = {
    "P in 15 steps": (
        _coarse_p(lambda p: torch.round(15 * p) / 15),
        r"\bP in|weights are|small weights",
    ),
    "P cut to e5m2": (
        _coarse_p(lambda p: (p.half().view(torch.int16) & ~0xFF).view(torch.float16).double()),
        r"\bP (?:in|truncated|cut)|weights are",
    ),
    "Q in e5m2": (
        scored(lambda w: w.scores(q=_e5m2(w.q))),
        r"(?<!and )\bQ in (?!another)|q rounded",
    ),
    "K in four bits by groups of 16 channels": (
        scored(lambda w: w.scores(k=_in_groups(w.k, 7, 16))),
        K_IN,
    ),
    "V in four bits with a scale by token": (valued(lambda w: _rounded_to(w.v, 7, -1)), V_IN),
    "V in three bits with a scale by channel": (valued(lambda w: _rounded_to(w.v, 3, 2)), V_IN),
    "scales of V in blocks swizzled among four tokens": (
        valued(_swizzled_scales),
        f"{V_SCALE}|{V_READ}",
    ),
    "zero points of V for unsigned bytes": (
        valued(_zero_points_of_v),
        r"a constant|(?<!and )\bV (?:is|with|.*offset)|offset of V|mean of V",
    ),
    "denominator in bf16, four keys at a time": (_sum_in_few_bits, SUM),
    "o cut to the bits of bf16 after each eight keys": (
        walked(8, after=_cut_sums),
        r"accumulat|\bo in",
    ),
    "1 / l from a table of eight": (_inverse_from_a_table, SUM),
    "one more in the denominator": (_one_more, "denominator|sink(?!s? left out)"),
    "outputs clipped at a third of the largest": (
        stored(_clipped),
        "(?<![QKV] )clipped|saturat",
    ),
    "a tenth of Q under the output": (stored(_with_query), r"quer|\bQ added|added .*\bQ\b"),
    "channels in the order of an accumulator": (stored(_fragments), f"channels|{_LAYOUT}"),
    "odd heads stored eight channels on": (
        stored(lambda w, out: _odd_heads(out, lambda x: x.roll(8, -1))),
        f"channels|{_LAYOUT}",
    ),
    "halves of 32 bits exchanged": (stored(_swapped), f"channels|{_LAYOUT}"),
    "row 3 of four stored from row 2": (stored(_last_of_four), "another row"),
    "rows after the last whole four without Q": (
        scored(_no_query),
        r"\bQ (?:is|read|as|with)|quer|mean of V|scale|weights are",
    ),
    "every third row left from another head": (
        stored(_stale_rows),
        r"another row|(?:output|Q) of another|stale|never written|uninitialised",
    ),
}
"""Name: the bug, and a pattern that a right name for it matches."""

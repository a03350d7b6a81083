"""Bugs in the scores: scale, soft cap, ALiBi, sinks, RoPE, steps of quantised Q and K, channels."""

import math
from collections.abc import Callable

import torch

from labkernels.measure.strangers.bugs import Bug
from labkernels.measure.strangers.inputs import Asked
from labkernels.measure.strangers.looked_at.twelfth.frame import K_READ, K_SCALE, raw, where_keys
from labkernels.measure.strangers.wrong import Work, attend, distances, keys_of, scored

_LOG2_E = math.log2(math.e)


def _capped(change: Callable) -> Bug:
    """Return a bug in the soft cap: change(w, scores, cap) returns the scores."""
    return scored(
        lambda w: change(w, raw(w), w.call.asked.soft_cap or 1.0).masked_fill(w.hidden, -math.inf)
    )


def _biased(change: Callable) -> Bug:
    """Return a bug in ALiBi: change(w, slopes [Hq, 1, 1], distances [M, L]) returns the bias."""

    def scores(w: Work):
        slopes = w.call.slopes
        if slopes is None:
            return w.s
        bias = change(w, slopes.double()[:, None, None], distances(w.s))
        return (raw(w) - bias).masked_fill(w.hidden, -math.inf)

    return scored(scores)


def _sunk(change: Callable) -> Bug:
    """Return a bug in the sinks: change(w, logits [Hq]) returns them."""

    def bug(w: Work):
        sinks = w.call.sinks
        sinks = None if sinks is None else change(w, sinks.double())
        return attend(w.s, w.v, w.call.q.dtype, sinks=sinks)

    return bug


def _turned(x, place):
    """Return x [B, H, S, D] rotated further by places [S]."""
    half = x.shape[-1] // 2
    angle = place.double()[:, None] * 1e4 ** (-torch.arange(half).double() / half)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)


def _scale_of_pow2(w: Work):
    d = w.q.shape[-1]
    return w.s * (d / 2 ** math.ceil(math.log2(d))) ** 0.5


def _channels(w: Work, first, last, factor: float):
    """Return the scores of queries with some channels times a factor."""
    q = w.q.clone()
    q[..., first:last] *= factor
    return w.scores(q=q)


def _group_first(w: Work, x):
    """Return x [Hq], with the first of its group for each head."""
    return x[:: w.call.group].repeat_interleave(w.call.group)


def _kv_slopes(w: Work, slopes, distance):
    count = w.call.k.shape[1]
    own = torch.exp2(-8 * torch.arange(1, count + 1).double() / count)
    return own.repeat_interleave(w.call.group)[:, None, None] * distance


def _from_row_numbers(w: Work, slopes, distance):
    m, n = distance.shape
    return slopes * (torch.arange(m)[:, None] - torch.arange(n)).abs().double()


def _step_of_the_token_before(w: Work):
    step = w.k.abs().amax(-1, keepdim=True)
    return w.scores(k=w.k * step.roll(1, 2) / step)


def _to_one_length(w: Work):
    return w.scores(k=w.k / w.k.pow(2).mean(-1, keepdim=True).sqrt())


def _zero_point(w: Work):
    """K is stored in 8 bits from its token's smallest number on, which nobody adds back."""
    return w.scores(k=w.k - w.k.amin(-1, keepdim=True))


def _head_scale(w: Work):
    """The k_scale of KV head 0 serves all; they rise by a fifth from head to head."""
    head = torch.arange(w.q.shape[1]) // w.call.group
    return w.scores(k=w.k / (1.2**head)[:, None, None])


def _odd_rows_before(w: Work):
    row = torch.arange(w.q.shape[2])
    return w.scores(q=w.q[:, :, row - row % 2])


def _moved(w: Work, by: int = 32):
    """The older half of the keys is rotated as if 32 places further on."""
    k = where_keys(w, lambda j: j < len(j) // 2, _turned(w.k, 0 * keys_of(w) + by), w.k)
    return w.scores(k=k)


_CAP = "soft cap(?! left out)|capped|scores clamped"
_ALIBI, _SINK = "ALiBi(?! left out)", "sink(?!s? left out)"
_TURNED_K, _TURNED_Q = "RoPE(?! of [QV])|rotated|rotation", "RoPE(?! of [KV])|rotated|rotation"
WRONG: dict[str, tuple[Bug, str]] = {
    "scale of the head padded to a power of two": (scored(_scale_of_pow2), "scale"),
    "last quarter of the channels scaled as a head of its own": (
        scored(lambda w: _channels(w, -(w.q.shape[-1] // 4), None, 2.0)),
        r"channels|scale|(?<!and )\b[QK] (?:is|by|with|divided)",
    ),
    "soft cap before the scale": (
        _capped(lambda w, s, cap: w.call.scale * cap * torch.tanh(s / w.call.scale / cap)),
        f"{_CAP}|scale",
    ),
    "tanh of the soft cap as a quotient": (
        _capped(lambda w, s, cap: s / (1 + s.abs() / cap)),
        _CAP,
    ),
    "soft cap of scores in log2 units": (
        _capped(lambda w, s, cap: cap / _LOG2_E * torch.tanh(s * _LOG2_E / cap)),
        _CAP,
    ),
    "ALiBi slopes of the KV heads": (_biased(_kv_slopes), _ALIBI),
    "ALiBi by the distance in whole tiles": (
        _biased(lambda w, slopes, distance: slopes * (distance // 32 * 32)),
        f"{_ALIBI}|bias",
    ),
    "ALiBi multiplied by the scale": (
        _biased(lambda w, slopes, distance: w.call.scale * slopes * distance),
        _ALIBI,
    ),
    "ALiBi from the row's number in the chunk": (_biased(_from_row_numbers), f"{_ALIBI}|bias"),
    "ALiBi slopes one head late": (
        _biased(lambda w, slopes, distance: slopes.roll(1, 0) * distance),
        _ALIBI,
    ),
    "sinks as if in log2 units": (_sunk(lambda w, sinks: sinks / _LOG2_E), _SINK),
    "sink of the group's first head": (_sunk(_group_first), _SINK),
    "sinks counted in each of three parts": (
        _sunk(lambda w, sinks: sinks + math.log(3)),
        f"{_SINK}|denominator",
    ),
    "sinks multiplied by the scale": (_sunk(lambda w, sinks: w.call.scale * sinks), _SINK),
    "K rotated again by its slot in the page": (
        scored(lambda w: w.scores(k=_turned(w.k, keys_of(w) % 16))),
        _TURNED_K,
    ),
    "older half of K 32 places off": (scored(_moved), _TURNED_K),
    "drafted rows all rotated as the first": (
        scored(lambda w: w.scores(q=_turned(w.q, -torch.arange(w.q.shape[2])))),
        _TURNED_Q,
    ),
    "K normalised once more": (scored(_to_one_length), K_SCALE),
    "steps of K from the token before": (scored(_step_of_the_token_before), K_SCALE),
    "K without its zero points": (
        scored(_zero_point),
        r"(?<!and )\bK (?:with|by|is|read with|.*offset|.*constant)|bias|zero point",
    ),
    "scale of KV head 0 for all K": (scored(_head_scale), f"scale|{K_SCALE}"),
    "second step of 16 channels multiplied twice": (
        scored(lambda w: _channels(w, 16, 32, 2.0)),
        r"channels|(?<!and )\b[QK] (?:is|by|with)",
    ),
    "odd rows read Q of the row before": (
        scored(_odd_rows_before),
        r"\bQ (?:read|of|is|with)|another row|query",
    ),
    "K channels in the order of the other RoPE": (
        scored(lambda w: w.scores(k=w.k.unflatten(-1, (2, -1)).mT.flatten(-2))),
        f"channels|RoPE(?! of [QV])|{K_READ}|K in another layout",
    ),
}
"""Name: the bug, and a pattern that a right name for it matches."""
ASKED: dict[str, Asked] = {
    "soft cap before the scale": Asked(soft_cap=6.0),
    "tanh of the soft cap as a quotient": Asked(soft_cap=2.5),
    "soft cap of scores in log2 units": Asked(soft_cap=1.5),
    **{name: Asked(alibi=True) for name in WRONG if name.startswith("ALiBi")},
    **{name: Asked(sinks=True) for name in WRONG if name.startswith("sink")},
}
"""The options that a bug needs."""

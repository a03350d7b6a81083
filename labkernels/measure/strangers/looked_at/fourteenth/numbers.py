"""Bugs of numbers: rotations, scales, formats of few bits and what belongs to them."""

import math

import torch

from labkernels.measure.strangers.bugs import Bug
from labkernels.measure.strangers.looked_at.fourteenth import words
from labkernels.measure.strangers.looked_at.fourteenth.frame import (
    chunks,
    for_queries,
    keys,
    kv_heads,
    of_k,
    of_q,
    of_v,
    paged,
    rows,
    turned,
)
from labkernels.measure.strangers.wrong import Work, places, scored


def _place(w: Work):
    """The places of queries: [M]."""
    return places(w)[0][:, 0]


def _seven_bits(w: Work, q):
    return turned(q, _place(w) % 128 - _place(w))


def _from_the_first_row(w: Work, q):
    return turned(q, rows(w) - places(w)[0])


def _first_half_scaled_twice(w: Work, q):
    half = q.shape[-1] // 2
    return torch.cat([q[..., :half] * 0.5, q[..., half:]], -1)


def _tail_of_base_e(w: Work):
    """Scores of the last tile of 32, if it is not whole, lack log2 e."""
    tail = keys(w) >= w.k.shape[2] // 32 * 32
    return torch.where(tail, w.s * math.log(2), w.s)


def _clamped(w: Work):
    return torch.where(w.hidden, w.s, w.s.clamp(-1.25, 1.25))


def _e4m3(x):
    return x.float().to(torch.float8_e4m3fn).double()


def _by_head(x):
    return x.abs().amax((2, 3), keepdim=True).clamp(min=1e-9) / 448


def _scale_of_another(w: Work, v):
    v = kv_heads(w, v)
    scale = _by_head(v)
    other = torch.linspace(0.8, 1.3, v.shape[1], dtype=torch.float64)[:, None, None] * scale
    return for_queries(w, _e4m3(v / other) * other.roll(1, 1))


def _page_scales_late(w: Work, v):
    pages = paged(v)
    scale = pages.abs().amax((3, 4), keepdim=True).clamp(min=1e-9)
    late = torch.cat([scale[:, :, :1], scale[:, :, :-1]], 2)
    return (pages * (late / scale)).flatten(2, 3)[:, :, : v.shape[2]]


def _powers_of_two(w: Work, k):
    """Keys are divided by their size and multiplied by the power of two below it."""
    size = k.abs().amax(-1, keepdim=True).clamp(min=1e-9)
    return k / size * torch.exp2(torch.floor(torch.log2(size)))


def _without_zero_point(w: Work, k):
    """Four bits for each 16 channels of a key, from their smallest on; the smallest is lost."""
    d = k.shape[-1] // 16 * 16
    groups = k[..., :d].unflatten(-1, (-1, 16))
    low = groups.amin(-1, keepdim=True)
    step = ((groups.amax(-1, keepdim=True) - low) / 15).clamp(min=1e-9)
    read = torch.round((groups - low) / step) * step
    return torch.cat([read.flatten(-2), k[..., d:]], -1)


def _four_bits(x):
    step = x.abs().amax(-1, keepdim=True).clamp(min=1e-9) / 7
    return torch.round(x / step) * step


def _fnuz(w: Work, k):
    """The bytes of e4m3 mean half as much if the exponent's bias is one more."""
    scale = _by_head(k)
    return _e4m3(k / scale) * scale / 2


def _e5m2_as_e4m3(w: Work, v):
    eighth = v.float().clamp(-400, 400).to(torch.float8_e5m2)
    return eighth.view(torch.float8_e4m3fn).double()


def _fp16_as_bf16(w: Work, v):
    """Values below 2 shrink, and values above it grow."""
    half = v.clamp(-6e4, 6e4).to(torch.float16).contiguous()
    return half.view(torch.bfloat16).double().clamp(-1e4, 1e4)


def _channel_scales_late(w: Work, k):
    size = k.abs().amax(2, keepdim=True).clamp(min=1e-9)
    return k * (size.roll(1, -1) / size)


WRONG: dict[str, tuple[Bug, str]] = {
    "keys of a ring cache turned by their slots": (
        of_k(lambda w, k: turned(k, keys(w) % 40 - keys(w))),
        words.TURNED_K,
    ),
    "places of queries cut to seven bits": (of_q(_seven_bits), words.TURNED_Q),
    "queries of a chunk turned as from place 0": (of_q(_from_the_first_row), words.TURNED_Q),
    "keys turned the other way": (of_k(lambda w, k: turned(k, -2 * keys(w))), words.TURNED_K),
    "first half of the channels of q halved": (of_q(_first_half_scaled_twice), words.CHANNEL_SCALE),
    "scores of the tail without log2 e": (scored(_tail_of_base_e), words.TAIL_SCALE),
    "YaRN's factor squared once more": (
        scored(lambda w: w.s * (0.1 * math.log(8) + 1) ** 2),
        r"wrong scale|scores times|\b[QK] by a factor",
    ),
    "scores clamped at 1.25": (scored(_clamped), words.SCORE_CLAMP),
    "V in e4m3 with the scale of the head before": (of_v(_scale_of_another), words.V_HEAD_SCALES),
    "scales of V's pages a page late": (of_v(_page_scales_late), words.V_SCALES),
    "sizes of keys cut to powers of two": (of_k(_powers_of_two), words.KEY_SCALES),
    "K in four bits without its zero point": (of_k(_without_zero_point), words.ZERO_POINT),
    "V in four bits, nibbles the other way round": (
        of_v(lambda w, v: chunks(_four_bits(v), lambda i: i ^ 1, size=1)),
        r"^channels(?! of (Q|K))|(?<!and )\bV (in (?!another)|read with)",
    ),
    "K in e4m3 of another bias": (of_k(_fnuz), words.K_FORMAT),
    "V's bytes of e5m2 read as e4m3": (of_v(_e5m2_as_e4m3), words.V_FORMAT),
    "V's halves read as bf16": (of_v(_fp16_as_bf16), words.V_FORMAT),
    "scales of K's channels a channel late": (of_k(_channel_scales_late), words.CHANNEL_SCALE),
}

"""Bugs in what becomes of scores: masks, windows, scales, rotations, caps, ALiBi and sinks."""

import math
from collections.abc import Callable

import torch

from labkernels.measure.strangers.inputs import Asked
from labkernels.measure.strangers.wrong import Work, attend, distances, masked, places, scored

CAUSAL = r"(?i)\bmask|\bcausal|\bhidden|future|diagonal"
WINDOW = r"(?i)\bwindow"
LEFT_OUT = (
    r"|\b(keys?|pages?|slots?|tiles?|blocks?|splits?|tokens?|context)\b"
    r".*(left out|skipped|missing|dropped|not read|never read|lost)"
    r"|(leaves out|skips|misses|drops|without) .*\b(keys?|pages?|tiles?|blocks?|splits?|tokens?)\b"
)
SCALE = r"(?i)\bscale|temperature|scores? .*(factor|times)"
CAP = r"(?i)\bcap\b|soft ?cap|tanh"
ALIBI = r"(?i)alibi|slope|\bbias|distance|position"
SINK = r"(?i)\bsinks?\b"
ROTATION = r"(?i)\brope\b|rotated|rotation"
LEFT, ASKED_CAP = 24, 4.0
"""Window and cap of the calls that ask for one."""


def raw(w: Work):
    """Scores of all keys, hidden or not, without a variant."""
    return w.q @ w.k.mT * w.call.scale


def causal(hide: Callable) -> Callable:
    """A bug in the causal mask: hide(work, place of the query, key) is what it hides."""

    def change(w: Work):
        return masked(raw(w), hide(w, *places(w))) if w.call.causal else w.s

    return scored(change)


def window(hide: Callable) -> Callable:
    """A bug in a window: hide(work, place, key) is what the window hides beside the mask."""

    def change(w: Work):
        place, key = places(w)
        return masked(raw(w), (key > place) | hide(w, place, key))

    return scored(change)


def _rounded_up(number: int, step: int = 16) -> int:
    return -(-number // step) * step


def _requests(w: Work):
    """The number of each request [B, 1, 1, 1]."""
    return torch.arange(len(w.q))[:, None, None, None]


def _rows(w: Work):
    return torch.arange(w.q.shape[2])[:, None]


def _one_key_more(w: Work):
    """Every row sees a key more; after the last key comes the first key of the next request."""
    k, v = (torch.cat([x, x[:, :, :1].roll(-1, 0)], 2) for x in (w.k, w.v))
    s = w.q @ k.mT * w.call.scale
    place = places(w)[0]
    hide = (torch.arange(s.shape[3])[None] > place + 1) & w.call.causal
    return attend(masked(s, hide), v, w.call.q.dtype)


def _masked_after(w: Work):
    """The weights of hidden keys stay in the denominator."""
    s = raw(w)
    p = torch.exp(s - s.amax(-1, keepdim=True))
    seen = p.masked_fill(w.hidden, 0.0).to(w.call.q.dtype).double()
    return ((seen @ w.v) / p.sum(-1, keepdim=True)).to(w.call.q.dtype)


def _packed_rows(w: Work):
    """Rows of a packed tile by query, then by head: [Hq, M, 1]."""
    head = torch.arange(w.q.shape[1])[:, None, None] % w.call.group
    return _rows(w) * w.call.group + head


def _power_of_2(number: int) -> int:
    return 1 << (number - 1).bit_length()


def _heads(w: Work):
    return torch.arange(w.q.shape[1])[:, None, None]


def capped(change):
    """A bug in a soft cap: change(work, scores, cap) before the mask."""
    return scored(lambda w: masked(change(w, raw(w), w.call.asked.soft_cap), w.hidden))


def biased(change):
    """A bug in ALiBi: change(work, slopes [Hq, 1, 1], distances) is subtracted from the scores."""

    def scores(w: Work):
        slopes = w.call.slopes.double()[:, None, None]
        return masked(raw(w) - change(w, slopes, distances(w.s)), w.hidden)

    return scored(scores)


def sunk(change):
    """A bug in the sinks: change(work, sinks [Hq]) gives the logits."""
    return lambda w: attend(w.s, w.v, w.call.q.dtype, sinks=change(w, w.call.sinks.double()))


def _slopes_of(heads: int):
    return torch.exp2(-8 * torch.arange(1, heads + 1).double() / heads)[:, None, None]


def _turned(x, first: int, channels: int, sign: float = 1.0):
    """The first channels rotated by the place, in halves."""
    half = channels // 2
    place = torch.arange(x.shape[2]).double()[:, None] + first
    angle = sign * place * 10000.0 ** (-torch.arange(half).double() / half)
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat(
        [a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos(), rest], -1
    )


def _first(w: Work) -> int:
    return w.k.shape[2] - w.q.shape[2]


WRONG = {
    # seqlen_k was increased for the new token before the call and once more in it.
    "the length of the keys is one too many": (
        _one_key_more,
        r"(?i)one key (too many|more)|(extra|another) key|past the end|future|length"
        r"|next request|\bcausal|\bmask|\bhidden",
    ),
    # The mask is applied to whole tiles of 16 alone.
    "a row sees its whole diagonal tile": (
        causal(lambda w, place, key: key // 16 > place // 16),
        CAUSAL + r"|\btile",
    ),
    # The number of tiles is rounded down, so the diagonal tile is never visited.
    "the last tile that a row needs is left out": (
        scored(
            lambda w: masked(w.s, (places(w)[1] // 16 >= places(w)[0] // 16) & (places(w)[0] >= 16))
        ),
        CAUSAL + LEFT_OUT + r"|\btile|last keys|keys at the end",
    ),
    # The mask takes the keys' padded length for the end of the queries.
    "the causal mask ends at the padded length of the keys": (
        causal(lambda w, place, key: key > place + _rounded_up(w.s.shape[3]) - w.s.shape[3]),
        CAUSAL,
    ),
    # The mask is aligned by the padded number of queries: rows see too little.
    "the causal mask starts from the padded number of queries": (
        causal(lambda w, place, key: key > place - _rounded_up(w.s.shape[2]) + w.s.shape[2]),
        CAUSAL + LEFT_OUT + "|last keys",
    ),
    # The row of the packed tile is taken for the query.
    "the mask of packed heads uses the packed row": (
        causal(lambda w, place, key: key > _packed_rows(w) + w.s.shape[3] - w.s.shape[2]),
        CAUSAL + r"|\bGQA|\bpacked",
    ),
    # Row and column are exchanged in the comparison.
    "the causal mask shows the future and hides the past": (
        causal(lambda w, place, key: key < place),
        CAUSAL + r"|transpos|revers|invert|past",
    ),
    # The framework adds a Boolean mask to the scores: 1 where a key is seen, 0 where it is not.
    "a Boolean mask is added to the scores": (
        scored(lambda w: raw(w) + (~w.hidden if w.call.causal else 0.0)),
        CAUSAL,
    ),
    # Weights are set to zero after the softmax.
    "weights are masked after their sum is taken": (
        _masked_after,
        CAUSAL + r"|denominator|normalis|normaliz",
    ),
    # A lane holds two columns and masks the first alone.
    "odd keys of the diagonal tile are not masked": (
        causal(lambda w, place, key: (key > place) & ((key % 2 == 0) | (key // 16 > place // 16))),
        CAUSAL,
    ),
    # The length of the context is that of another request.
    "each request's causal mask starts 3 keys earlier than the one before": (
        causal(lambda w, place, key: key > place - 3 * _requests(w)),
        CAUSAL + LEFT_OUT + "|request|length|context",
    ),
    # The mask is switched off for heads that a second launch handles.
    "the last head has no causal mask": (
        causal(
            lambda w, place, key: (
                (key > place) & (torch.arange(w.q.shape[1]) < w.q.shape[1] - 1)[:, None, None]
            )
        ),
        CAUSAL,
    ),
    # Chunks of attention as in a long-context model, in a layer that should have none.
    "a row sees the keys of its own chunk of 32 alone": (
        scored(lambda w: masked(w.s, places(w)[1] // 32 < places(w)[0] // 32)),
        WINDOW + LEFT_OUT + r"|\bchunk|local|\bmask",
    ),
    # The head dimension is padded for the tensor cores and the scale is that of the padded one.
    "the scale is that of the padded head dimension": (
        scored(lambda w: w.s * (w.q.shape[3] / _power_of_2(w.q.shape[3])) ** 0.5),
        SCALE,
    ),
    # Latent attention: the scale of 576 channels in place of those before the absorption.
    "the scale counts 64 channels too many": (
        scored(lambda w: w.s * (w.q.shape[3] / (w.q.shape[3] + 64)) ** 0.5),
        SCALE,
    ),
    # The scale grows with the length, as some models want and this one does not.
    "the scale is multiplied by the logarithm of the length": (
        scored(lambda w: w.s * math.log(w.s.shape[3]) / math.log(20)),
        SCALE,
    ),
    # q is scaled in registers by the threads of the even rows.
    "odd rows are not scaled": (
        scored(lambda w: torch.where(_rows(w) % 2 == 1, w.s / w.call.scale, w.s)),
        SCALE,
    ),
    # The scales are an array by heads that is one short: the last head reads a 1.
    "the last head has no scale": (
        scored(lambda w: torch.where(_heads(w) == w.q.shape[1] - 1, w.s / w.call.scale, w.s)),
        SCALE,
    ),
    # The epilogue of the tile before the last uses exp2 on natural scores.
    "keys past 32 are weighed in base 2": (
        scored(lambda w: w.s * torch.where(torch.arange(w.s.shape[3]) < 32, 1, math.log(2))),
        SCALE + r"|\blog2|base 2|\bexp2|log base",
    ),
    # The scale is 1 / sqrt(D) by a fast reciprocal root with an error of 2 %.
    "the scale is 2 % small": (scored(lambda w: 0.98 * w.s), SCALE),
    # The fused rotation is applied to queries that were rotated before the call.
    "RoPE is applied again to q alone": (
        scored(lambda w: w.scores(q=_turned(w.q, _first(w), w.q.shape[3]))),
        ROTATION,
    ),
    # The same with keys, for a model that rotates half of the channels.
    "RoPE is applied again to q and k in half of the channels": (
        scored(
            lambda w: w.scores(
                _turned(w.q, _first(w), w.q.shape[3] // 2), _turned(w.k, 0, w.k.shape[3] // 2)
            )
        ),
        ROTATION,
    ),
}

WINDOWED = {
    # A window of w keys and w keys to the left are taken for the same thing.
    "the window is one key short": (
        window(lambda w, place, key: key <= place - LEFT),
        WINDOW + LEFT_OUT,
    ),
    # The window's argument is not passed on.
    "the window is left out": (window(lambda w, place, key: key < 0), WINDOW),
    # The loop starts at the right tile and the tile's mask is forgotten.
    "the window starts at a whole tile": (
        window(lambda w, place, key: key < (place - LEFT) // 16 * 16),
        WINDOW,
    ),
    # The left edge is computed once for the tile of rows.
    "the window of a row is that of its tile's first row": (
        window(lambda w, place, key: key < place - _rows(w) % 16 - LEFT),
        WINDOW,
    ),
    # The decode kernel's window, counted from the last key, is used for a prefill.
    "the window is counted from the last key for every row": (
        window(lambda w, place, key: (key < w.s.shape[3] - 1 - LEFT) & (key < place)),
        WINDOW + LEFT_OUT,
    ),
    # The window is aligned at the top left and the causal mask at the bottom right.
    "the window starts from the number of the row": (
        window(lambda w, place, key: key < _rows(w) - LEFT),
        WINDOW,
    ),
    # The windows are an array by heads, and the odd entries are another model's.
    "odd heads have half of the window": (
        window(
            lambda w, place, key: (
                key < place - LEFT // (1 + torch.arange(w.q.shape[1])[:, None, None] % 2)
            )
        ),
        WINDOW + LEFT_OUT,
    ),
    # The first keys are kept for a streaming model where nobody asked for them.
    "the first 4 keys stay in the window": (
        window(lambda w, place, key: (key < place - LEFT) & (key >= 4)),
        WINDOW + r"|\bmask|\bhidden|first keys?|\bsink",
    ),
}

CAPPED = {
    # The cap is a template argument that is off in this build.
    "the soft cap is left out": (capped(lambda w, s, cap: s), CAP),
    # tanh of minus infinity is -1: hidden keys come back with a score of minus the cap.
    "the soft cap is applied after the mask": (
        scored(lambda w: torch.where(w.hidden, -w.call.asked.soft_cap, w.s)),
        CAP + r"|\bmask|\bcausal|\bhidden",
    ),
    # The raw product is capped, then scaled.
    "the soft cap comes before the scale": (
        capped(lambda w, s, cap: cap * torch.tanh(s / w.call.scale / cap) * w.call.scale),
        CAP + r"|\bscale",
    ),
    # The scores carry log2 e before the cap, and the cap does not.
    "the soft cap acts on scores in log2 units": (
        capped(lambda w, s, cap: cap * torch.tanh(s * math.log2(math.e) / cap) * math.log(2)),
        CAP + r"|\blog2|base 2",
    ),
    # tanh in bf16, two at a time.
    "tanh is computed in bf16": (
        capped(lambda w, s, cap: cap * torch.tanh(s / cap).bfloat16().double()),
        CAP + r"|scores? .*(bf16|bfloat16|round|8 bits|16 bits)",
    ),
    # The score is clipped in place of capped.
    "the scores are clipped at the cap": (
        capped(lambda w, s, cap: s.clamp(-cap, cap)),
        CAP + r"|clip|clamp",
    ),
}

BIASED = {
    # The slopes are indexed by the KV head.
    "ALiBi's slopes are those of the KV head's number": (
        biased(lambda w, slopes, far: slopes[torch.arange(len(slopes)) // w.call.group] * far),
        ALIBI,
    ),
    # The slopes are those of the next power of two, in a model with another number of heads.
    "ALiBi's slopes are those of a power of two heads": (
        biased(lambda w, slopes, far: _slopes_of(_power_of_2(len(slopes)))[: len(slopes)] * far),
        ALIBI,
    ),
    # The difference is taken the other way round.
    "ALiBi favours far keys": (biased(lambda w, slopes, far: -slopes * far), ALIBI),
    # The bias is added to the raw product.
    "ALiBi is multiplied by the scale": (
        biased(lambda w, slopes, far: slopes * far * w.call.scale),
        ALIBI + r"|\bscale",
    ),
    # log2 e multiplies the product alone.
    "ALiBi lacks the factor log2 e": (
        biased(lambda w, slopes, far: slopes * far * math.log(2)),
        ALIBI + r"|\blog2|base 2",
    ),
    # The column in the tile is taken for the key's number.
    "ALiBi starts again in each tile of 64 keys": (
        biased(lambda w, slopes, far: -slopes * (torch.arange(far.shape[1]) % 64).double()),
        ALIBI + r"|\btile",
    ),
    # The pointer to the slopes is null in the second request.
    "ALiBi is left out in the last request": (
        biased(
            lambda w, slopes, far: (
                slopes * far * (torch.arange(len(w.q)) < len(w.q) - 1).double()[:, None, None, None]
            )
        ),
        ALIBI,
    ),
}

SUNK = {
    # The kernel has no sinks.
    "the sinks are left out": (lambda w: attend(w.s, w.v, w.call.q.dtype), SINK),
    # The index lacks the offset of the rank.
    "the sink is that of the next head": (sunk(lambda w, sinks: sinks.roll(-1)), SINK),
    # exp2 of a natural logit.
    "the sink lacks the factor log2 e": (
        sunk(lambda w, sinks: sinks * math.log(2)),
        SINK + r"|\blog2|base 2|\bexp2",
    ),
    # Each of four splits adds the sink.
    "the sink is counted in each of 4 splits": (
        sunk(lambda w, sinks: sinks + math.log(4)),
        SINK + r"|denominator",
    ),
    # The sink's weight is taken against 0 and not against the row's maximum.
    "the sink is not rescaled by the maximum": (
        lambda w: attend(
            torch.cat([w.s, w.call.sinks.double()[:, None, None] + w.s.amax(-1, keepdim=True)], -1),
            torch.nn.functional.pad(w.v, (0, 0, 0, 1)),
            w.call.q.dtype,
        ),
        SINK + r"|denominator|maximum",
    ),
}
WRONG |= WINDOWED | CAPPED | BIASED | SUNK
ASKED = (
    {name: Asked(window_left=LEFT) for name in WINDOWED}
    | {name: Asked(soft_cap=ASKED_CAP) for name in CAPPED}
    | {name: Asked(alibi=True) for name in BIASED}
    | {name: Asked(sinks=True) for name in SUNK}
)

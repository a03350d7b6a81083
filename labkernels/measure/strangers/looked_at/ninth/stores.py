"""Bugs in stores, races, low precision and quantisation."""

import math
from collections.abc import Callable

import torch

from labkernels.measure.strangers.looked_at.ninth.reads import packed
from labkernels.measure.strangers.wrong import (
    Work,
    attend,
    changed,
    keys_of,
    scored,
    stored,
    valued,
)

ROW = (
    r"(?i)\bquer|(another|other|wrong|next|previous|same) rows?\b"
    r"|\brows?\b.*(swap|exchang|permut|order|moved|shift|before|after|mixed|place)"
)
HEAD_OR_ROW = ROW + r"|\bheads?\b|\bGQA\b"
CHANNELS = r"(?i)channel|head dim"
WRITTEN = (
    r"(?i)(not|never) (yet )?(written|stored)|zero(ed)? (rows?|output|channels?|elements?)"
    r"|\b(rows?|output|channels?|elements?)\b.*(zeros?\b|\b0\b)"
)
STALE = r"(?i)\bstale|\brace|too early|not yet"
SCATTERED = STALE + r"|sparse|outlier|garbage|scattered|\belements"
DENOMINATOR = r"(?i)denominator|normalis|normaliz|\bsum\b|\bl\b (is|of|not)"
DENOMINATOR += r"|\brows?\b.*\b(factor|times)\b|\b(factor|times)\b.*\brows?\b"
OF_OUTPUT = r"(?i)^(?!.*\b(wrong|softmax) scale).*(factor|times\b|descale|scales? of|common mode)"
OF_K = r"(?i)\bscale|temperature|\b(K|scores?)\b.*(factor|times|twice|double|half|large)"
COARSE = r".*(round|trunc|\bbits?\b|int[48]|e[45]m[23]|fp8|bf16|quantis|quantiz|grid|coarse)"
NOT_THE_OUTPUT = r"(?i)^(?!.*\b(P|K|V|q|scores?|weights)\b)"
P_ROUNDED = r"(?i)(\bP\b|\bweights\b|probability)" + COARSE
V_ROUNDED = r"(?i)\bV\b" + COARSE
K_ROUNDED = r"(?i)\b(K|scores?)\b" + COARSE


def _weights(w: Work):
    """Weights against the row's maximum, and their sum."""
    p = torch.exp(w.s - w.s.amax(-1, keepdim=True))
    return p, p.sum(-1, keepdim=True)


def of_p(change: Callable) -> Callable:
    """A bug in P: change(work, P) is what meets V; the sum is right."""

    def bug(w: Work):
        p, l = _weights(w)
        return (change(w, p) @ w.v / l).to(w.call.q.dtype)

    return bug


def summed(change: Callable) -> Callable:
    """A bug in the denominator: change(work, P, its sum) gives what divides."""

    def bug(w: Work):
        p, l = _weights(w)
        rounded = p if w.call.q.dtype == torch.float32 else p.to(w.call.q.dtype).double()
        return (rounded @ w.v / change(w, p, l)).to(w.call.q.dtype)

    return bug


def _rows(x):
    return torch.arange(x.shape[2])


def _in_row_tiles(out, row):
    """Rows by another number, where there is such a row."""
    here = _rows(out)
    return out[:, :, torch.where(row < len(here), row, here)]


def _squares_transposed(out, size: int = 8):
    """Squares of rows and channels transposed; rows past the end are lost."""
    m, d = out.shape[2], out.shape[3] // size * size
    x = torch.nn.functional.pad(out, (0, 0, 0, -m % size))
    squares = x[..., :d].reshape(*out.shape[:2], -1, size, d // size, size)
    x[..., :d] = squares.transpose(3, 5).reshape(*x.shape[:3], d)
    return x[:, :, :m]


def _permuted(out, order):
    """Channels by an order of groups of 8."""
    channel = torch.arange(out.shape[-1])
    return out[..., channel // 8 * 8 + torch.tensor(order)[channel % 8]]


def _toward_zero(x, dtype):
    """Numbers cut to a format and not rounded."""
    near = x.to(dtype)
    too_far = near.double().abs() > x.abs()
    down = torch.nextafter(near, torch.zeros_like(near)) if dtype == torch.float32 else near
    if dtype != torch.float32:
        down = (near.view(torch.int16) - 1).view(dtype)
    return torch.where(too_far, down, near)


def _other_format(out):
    """The bits of the one 16-bit format read as the other."""
    if out.dtype == torch.float32:
        return out.view(torch.int32).bitwise_and(-65536).view(torch.float32) * 2
    other = torch.float16 if out.dtype == torch.bfloat16 else torch.bfloat16
    return out.to(other).view(out.dtype)


def _grid(x, levels: int, dims):
    """Numbers of a symmetric grid with one step for the dimensions."""
    step = x.abs().amax(dims, keepdim=True).clamp(min=1e-30) / levels
    return (x / step).round().clamp(-levels, levels) * step


def _tile_sizes(x, size: int = 16):
    """The largest number of each tile of keys, for each key: [B, H, L, 1]."""
    tiles = x.abs().amax(-1, keepdim=True).split(size, 2)
    return torch.cat([0 * tile + tile.amax(2, keepdim=True) for tile in tiles], 2)


def _of_tile_before(x, size: int = 16):
    return torch.cat([x[:, :, :size], x[:, :, :-size]], 2)


def _head_sizes(x):
    return x.abs().amax((0, 2, 3), keepdim=True).clamp(min=1e-30)


def _of_next_head(w: Work, x):
    return x.roll(-w.call.group, 1) if w.call.k.shape[1] > 1 else x


def _stale_v(w: Work):
    """The last quarter of a tile of V has not arrived, in the second half of the channels."""
    late = (keys_of(w) % 32 >= 24)[:, None] & (torch.arange(w.v.shape[3]) >= w.v.shape[3] // 2)
    return torch.where(late, _of_tile_before(w.v, 32), w.v)


def _stale_p(w: Work, p):
    """Every second row reads half of each tile of 16 columns before that half is written."""
    before = torch.cat([p[..., :16], p[..., :-16]], -1)
    late = (_rows(p)[:, None] % 2 == p.shape[2] % 2) & (torch.arange(p.shape[3]) % 16 >= 8)
    return torch.where(late, before, p)


def _stale_q(w: Work):
    """The last 8 channels of q are not there for the first tile of keys."""
    short = w.scores(q=w.q * (torch.arange(w.q.shape[3]) < w.q.shape[3] - 8))
    return torch.where(keys_of(w) < 32, short, w.s)


def _scattered(out, step: int, value):
    """A few elements, spread over the output, with the value from another place."""
    flat, other = out.flatten().clone(), value.flatten()
    flat[3::step] = other[3::step]
    return flat.reshape(out.shape)


def _stepwise_scores(w: Work):
    """Scores summed over steps of 16 channels in bf16."""
    s = torch.zeros_like(w.s)
    for first in range(0, w.q.shape[3], 16):
        q, k = (x[..., first : first + 16] for x in (w.q, w.k))
        s = (s + q @ k.mT).bfloat16().double()
    return (s * w.call.scale).masked_fill(w.hidden, -math.inf)


def _stepwise_sum(w: Work, p, l):
    """Weights summed key after key in bf16."""
    l = 0 * l
    for part in p.split(1, -1):
        l = (l + part).bfloat16().double()
    return l


def _rough_reciprocal(l):
    return (0x7EF311C7 - l.float().view(torch.int32)).view(torch.float32).double()


def _fast_exp(x):
    """The bits of 2^x by a straight line between powers of two, as in old tricks."""
    whole = torch.floor(x)
    return torch.exp2(whole) * (1 + x - whole) * 0.97


WRONG = {
    # The store of a tile of 16 rows is predicated on the whole tile.
    "rows past the last whole tile of 16 are not written": (
        stored(
            lambda w, out: changed(
                out, (..., _rows(out) >= len(_rows(out)) // 16 * 16, slice(None)), 0.0
            )
        ),
        WRITTEN,
    ),
    # The channels are stored by 32, and a head dimension that is no multiple loses its end.
    "channels past the last whole 32 are not written": (
        stored(lambda w, out: changed(out, (..., slice(out.shape[-1] // 32 * 32, None)), 0.0)),
        WRITTEN + "|channel",
    ),
    # The epilogue unpacks query heads and queries in the other order.
    "the rows of a packed tile are stored in another order": (
        stored(packed),
        HEAD_OR_ROW + r"|output.*layout|\bpacked",
    ),
    # The order of the accumulator's registers is taken for that of memory.
    "channels of each 8 are stored in the order 0 4 1 5 2 6 3 7": (
        stored(lambda w, out: _permuted(out, [0, 4, 1, 5, 2, 6, 3, 7])),
        CHANNELS + r"|permut|output.*layout",
    ),
    # Two halves of a 32-bit register are written in the other order.
    "neighbouring channels are exchanged": (
        stored(lambda w, out: _permuted(out, [1, 0, 3, 2, 5, 4, 7, 6])),
        CHANNELS + r"|permut|output.*layout",
    ),
    # stmatrix with .trans.
    "the output is transposed in squares of 8": (
        stored(lambda w, out: _squares_transposed(out)),
        ROW + r"|transpos|output.*layout|channel",
    ),
    # The two rows of a thread's accumulator are exchanged.
    "rows 0 to 7 and 8 to 15 of a tile are exchanged": (
        stored(lambda w, out: _in_row_tiles(out, _rows(out) ^ 8)),
        ROW,
    ),
    # The last tile is moved back to fit, and its rows are stored where they would have been.
    "rows from the middle on are those of the row before": (
        stored(
            lambda w, out: _in_row_tiles(
                out, _rows(out) - (_rows(out) > len(_rows(out)) // 2).long()
            )
        ),
        ROW,
    ),
    # The heads of a group are unrolled from the last.
    "the heads of a group are stored in reverse": (
        stored(lambda w, out: out.unflatten(1, (-1, w.call.group)).flip(2).flatten(1, 2)),
        r"(?i)\bheads?\b|another row|other row",
    ),
    # The requests were sorted by length, and the outputs are not sorted back.
    "the requests are stored in reverse": (
        stored(lambda w, out: out.flip(0)),
        r"(?i)request|batch|another row|other row",
    ),
    # The buffer was not cleared, and the kernel adds to what a warm-up run left.
    "the output is added to that of a run before": (
        stored(lambda w, out: out + out),
        OF_OUTPUT + r"|twice|doubled?\b|added|accumulate[sd]? (in|on)to",
    ),
    # Atomic adds into a buffer that holds the request before.
    "the output is added to a quarter of that of the next head": (
        stored(lambda w, out: out + 0.25 * out.roll(-1, 1)),
        r"(?i)\bheads?\b|another row|other rows?|added|accumulate[sd]? (in|on)to|not cleared",
    ),
    # The epilogue converts to the one 16-bit format, and the tensor has the other.
    "the bits of the other 16-bit format are stored": (
        stored(lambda w, out: _other_format(out)),
        r"(?i)\bbits (of|are|read)|bit pattern|(an)?other format|dtype|reinterpret"
        r"|(bf16|fp16).* (as|for|taken|read)\b",
    ),
    # The sum of the row is read from shared memory with the index of the row after.
    "a row is divided by the sum of the next row": (
        summed(lambda w, p, l: l.roll(-1, 2) if l.shape[2] > 1 else l.roll(-1, 1)),
        DENOMINATOR,
    ),
    # The sums of a packed group lie one head further.
    "a head is divided by the sum of the next head": (
        summed(lambda w, p, l: l.roll(-1, 1)),
        DENOMINATOR,
    ),
    # The reciprocal by the bits of the float is the start of an iteration that was left out.
    "the reciprocal of the sum has no Newton step": (
        summed(lambda w, p, l: 1 / _rough_reciprocal(l)),
        DENOMINATOR + r"|reciprocal|" + OF_OUTPUT[4:],
    ),
    # A sum of thousands of weights in 16 bits.
    "the sum is accumulated in bf16": (
        summed(_stepwise_sum),
        DENOMINATOR,
    ),
    # cp.async.wait_group with one group too many.
    "part of a tile of V is that of the tile before": (
        valued(_stale_v),
        STALE + r"|\bV\b.*(earlier|before|page|other key|offset)|\btile|channels of V",
    ),
    # A barrier is missing between the store of P and its load.
    "columns of P are those of the tile before in every other row": (
        of_p(_stale_p),
        STALE + r"|\btile|\bweights|(?-i:\bP\b)",
    ),
    # The first product starts before the last copy of q is there.
    "q lacks 8 channels for the first 32 keys": (
        scored(_stale_q),
        STALE + r"|channels? (of q|left out|missing)|\bq\b|quer|first (tile|keys|block|page|split)",
    ),
    # The staging buffer of the output is used again before all of the output is out.
    "every 89th element is that of another row": (
        stored(lambda w, out: _scattered(out, 89, out.roll(1, 1))),
        SCATTERED + "|another row",
    ),
    # The same with a buffer that was never written.
    "every 61st element is zero": (
        stored(lambda w, out: _scattered(out, 61, 0 * out)),
        SCATTERED + "|" + WRITTEN[4:],
    ),
    # Shared memory past the last key is not cleared: 0 times NaN.
    "the last row of each head is NaN": (
        stored(lambda w, out: changed(out, (slice(None), slice(None), -1), math.nan)),
        r"(?i)\bnan|finite|not a number",
    ),
    # cvt without .rn: the output is cut.
    "the output is rounded toward zero": (
        lambda w: _toward_zero(attend(w.s, w.v, torch.float32).double(), w.call.q.dtype),
        NOT_THE_OUTPUT + r".*(trunc|toward|round|\bcut\b)",
    ),
    # The output of a quantised model, in a call that is not.
    "the output passes through e4m3": (
        stored(lambda w, out: out.float().to(torch.float8_e4m3fn).to(out.dtype)),
        NOT_THE_OUTPUT + r"(?=.*(e4m3|fp8|bits|8-bit|round|quantis|quantiz|format|mantissa))",
    ),
    # Gradients' format in the forward kernel.
    "P is in e5m2": (
        of_p(lambda w, p: p.float().to(torch.float8_e5m2).double()),
        P_ROUNDED,
    ),
    # P as integers from 0 to 127, as in kernels with 8-bit products.
    "P is in int8": (of_p(lambda w, p: (p * 127).round() / 127), P_ROUNDED),
    # One step for the whole tensor of K.
    "K is in int8 with one scale": (
        scored(lambda w: w.scores(k=_grid(w.k, 127, (0, 1, 2, 3)))),
        K_ROUNDED,
    ),
    # A cache of 4 bits with a step for each token.
    "V is in int4": (valued(lambda w: _grid(w.v, 7, 3)), V_ROUNDED),
    # The cache is e4m3fnuz, whose exponent has another bias, and is read as e4m3fn.
    "K is read in a format with another bias: twice as large": (
        scored(lambda w: w.scores(k=2 * w.k)),
        OF_K,
    ),
    # The scale of K is an array by KV heads, read one head further.
    "K has the scale of the next head": (
        scored(lambda w: w.scores(k=w.k * _of_next_head(w, _head_sizes(w.k)) / _head_sizes(w.k))),
        OF_K,
    ),
    # The same array for V.
    "V has the scale of the next head": (
        valued(lambda w: w.v * _of_next_head(w, _head_sizes(w.v)) / _head_sizes(w.v)),
        OF_OUTPUT + r"|(?-i:\bV\b).*scale",
    ),
    # Scales by tiles of 16 keys, one tile behind.
    "V has the scale of the tile before": (
        valued(
            lambda w: w.v * _of_tile_before(_tile_sizes(w.v)) / _tile_sizes(w.v).clamp(min=1e-30)
        ),
        OF_OUTPUT + r"|(?-i:\bV\b).*scale|weights? of (the )?keys"
        r"|\b(tiles?|blocks?|pages?)\b.*(factor|times|scale)",
    ),
    # The zero point of an 8-bit cache is not subtracted.
    "V keeps the zero point of its head": (
        valued(lambda w: w.v + 0.25 * w.v.std((2, 3), keepdim=True)),
        r"(?i)zero point|constant|\bbias|added|shifted by|V .*(plus|offset)|common mode",
    ),
    # The tensor cores sum the scores in a short accumulator.
    "scores are summed in bf16": (
        scored(_stepwise_scores),
        r"(?i)scores?\b|\bQ ?K|q k",
    ),
    # A cheap exponential by the bits of a float.
    "exp2 is a straight line between powers of two": (
        lambda w: attend(
            w.s,
            w.v,
            w.call.q.dtype,
            weights=(lambda x: _fast_exp(x * math.log2(math.e)) / torch.exp(x))(
                (w.s - w.s.amax(-1, keepdim=True)).clamp(min=-60)
            ),
        ),
        r"(?i)\bexp|approx|(?-i:\bP\b)|softmax|\bweights" + COARSE,
    ),
    # The last request's output is written by another launch, with the scale of V left in.
    "the last request is multiplied by 0.75": (
        stored(lambda w, out: torch.cat([out[:-1], 0.75 * out[-1:]])),
        OF_OUTPUT + r"|\brequest",
    ),
}

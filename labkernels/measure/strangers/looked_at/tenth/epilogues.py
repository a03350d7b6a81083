"""Bugs of the tenth set in what is stored: layouts, swizzles, rows, channels, last factors."""

import math
from collections.abc import Callable

import torch

from labkernels.measure.strangers.bugs import Bug
from labkernels.measure.strangers.looked_at.tenth.tiles import (
    DIVISOR,
    FACTOR,
    K_KEYS,
    RESCALE,
    V_KEYS,
    divided,
    heads,
    online,
    rows,
    softmax_parts,
    swapped_pairs,
    used,
)
from labkernels.measure.strangers.wrong import Work, attend, keys_of, scored, stored, valued

_VECTOR = 8  # channels that one instruction loads or stores


def _out(change: Callable) -> Callable:
    return stored(lambda w, out: change(out))


def _of_rows(change: Callable) -> Callable:
    """A bug in the rows [B, M * H, D] of the output, the heads of a token side by side."""
    return stored(lambda w, out: heads(change(rows(out)), out).contiguous())


def _tokens_first(out):
    """[H, M, D] written where [M, H, D] is read."""
    b, h, m, d = out.shape
    return out.reshape(b, m, h, d).transpose(1, 2)


def _group_first(w: Work, out):
    """Heads written with the group outside and the KV head inside."""
    b, h = out.shape[:2]
    return (
        out.reshape(b, h // w.call.group, w.call.group, *out.shape[2:])
        .transpose(1, 2)
        .flatten(1, 2)
    )


def _chunks(x, row):
    """Exchange neighbouring vectors of channels in odd rows, as a swizzle does.

    row: numbers of the rows, that broadcast to x without its channels.
    """
    count = x.shape[-1] // _VECTOR
    there = swapped_pairs(count)
    vectors = x[..., : count * _VECTOR].reshape(*x.shape[:-1], count, _VECTOR)
    turned = vectors[..., there, :].flatten(-2)
    turned = torch.cat([turned, x[..., count * _VECTOR :]], -1)
    return torch.where((row % 2 == 1)[..., None], turned, x)


def _unswizzled(flat):
    return _chunks(flat, torch.arange(flat.shape[1]))


def _far_chunks(x, row):
    """Vectors of channels exchanged four apart, in the second half of eight rows."""
    count = x.shape[-1] // _VECTOR
    there = swapped_pairs(count, 4)
    vectors = x[..., : count * _VECTOR].reshape(*x.shape[:-1], count, _VECTOR)
    turned = torch.cat([vectors[..., there, :].flatten(-2), x[..., count * _VECTOR :]], -1)
    return torch.where((row % 8 >= 4)[..., None], turned, x)


def _tail_channels(out):
    """Channels after the last whole 32 never stored."""
    out = out.clone()
    whole = (out.shape[-1] - 1) // 32 * 32
    out[..., whole:] = 0
    return out


def _last_vector_back(out):
    """The last vector stored one vector too early."""
    out = out.clone()
    d = out.shape[-1]
    out[..., d - 2 * _VECTOR : d - _VECTOR] = out[..., d - _VECTOR :].clone()
    out[..., d - _VECTOR :] = 0
    return out


def _tile_transposed(flat):
    """Squares of 8 rows and 8 channels stored transposed."""
    r, d = flat.shape[1:]
    out = flat.clone()
    for first in range(0, r // 8 * 8, 8):
        for channel in range(0, d // 8 * 8, 8):
            tile = flat[:, first : first + 8, channel : channel + 8]
            out[:, first : first + 8, channel : channel + 8] = tile.transpose(1, 2)
    return out


def _half_of_rows(flat):
    """Rows 8 to 15 of each 16 stored in the place of rows 0 to 7."""
    out = flat.clone()
    index = torch.arange(flat.shape[1])
    later = (index + 8).clamp(max=flat.shape[1] - 1)
    low = index % 16 < 8
    return torch.where(low[:, None], flat[:, later], out)


def _unstored_rows(flat):
    """The last rows of each tile of 16 never stored, in memory that was zero."""
    late = torch.arange(flat.shape[1]) % 16 >= 5
    return flat.masked_fill(late[:, None], 0.0)


def _padded_stride(out, pad: int = 8):
    """Rows stored with the stride of a padded head, and read without it."""
    b, h, m, d = out.shape
    padded = torch.nn.functional.pad(rows(out), (0, pad))
    return heads(padded.reshape(b, -1)[:, : h * m * d].reshape(b, h * m, d), out).contiguous()


def _divided_twice(w: Work):
    """A second division by l, of a helper that divides too."""
    p, l, _ = softmax_parts(w)
    return divided(w, used(p, w) @ w.v / l.clamp(min=1e-300), l)


def _root(w: Work):
    """A division by the root of l, of an rsqrt for a reciprocal."""
    p, l, _ = softmax_parts(w)
    return divided(w, used(p, w) @ w.v, l**0.5)


def _rough_reciprocal(w: Work):
    """A reciprocal from a table, good to 4 bits."""
    p, l, _ = softmax_parts(w)
    power = torch.exp2(torch.floor(torch.log2(l)))
    return divided(w, used(p, w) @ w.v, power * torch.round(l / power * 16) / 16)


def _one_l_for_tile(w: Work):
    """The first row's l for four rows, the heads of a token side by side."""
    p, l, _ = softmax_parts(w)
    flat = rows(l)
    index = torch.arange(flat.shape[1]) // 4 * 4
    return divided(w, used(p, w) @ w.v, heads(flat[:, index], l))


def _half_not_rescaled(w: Work, size: int = 32):
    """The second half of the channels without the last rescales, of a second warpgroup."""
    bad = online(size, of_o=lambda step: torch.where(step.alpha == 0, 0.0, 1.0).double())(w)
    good = attend(w.s, w.v, w.call.q.dtype)
    half = good.shape[-1] // 2
    return torch.cat([good[..., :half], bad[..., half:]], -1)


def _gated(w: Work, out):
    """A gate by head that a later kernel applies too."""
    gate = torch.sigmoid(torch.linspace(-0.5, 2.0, out.shape[1]))[:, None, None]
    return (out.double() * gate).to(out.dtype)


def _half_of_heads(out, factor: float):
    """A factor in the second half of the heads, which another device holds."""
    late = torch.arange(out.shape[1]) >= out.shape[1] // 2
    scale = torch.where(late, factor, 1.0).double()[:, None, None]
    return (out.double() * scale).to(out.dtype)


def _channel_scales(v):
    """The scales of V by channel, from the neighbour."""
    scale = 1 + 0.3 * torch.sin(torch.arange(v.shape[-1], dtype=torch.float64))
    return v * scale.roll(1) / scale


def _k_vectors(w: Work):
    """Vectors of K's channels swizzled when stored, and not when loaded."""
    return w.scores(k=_chunks(w.k, keys_of(w)))


def _v_vectors(w: Work):
    return _far_chunks(w.v, keys_of(w))


def _q_vectors(w: Work):
    """Q swizzled by its row in a tile, where K is not."""
    flat = rows(w.q)
    return w.scores(q=heads(_chunks(flat, torch.arange(flat.shape[1])), w.q))


def _odd_channels_of_v(w: Work):
    """Odd channels of V from the key beside: two 16-bit numbers of a register exchanged."""
    there = swapped_pairs(w.v.shape[2])
    odd = torch.arange(w.v.shape[-1]) % 2 == 1
    return torch.where(odd, w.v[:, :, there], w.v)


def _nan_rows(w: Work, out):
    """Infinity times 0 in rows of one block: the first rows of the last request."""
    out = out.clone()
    out[-1, :, : max(1, out.shape[2] // 4), -_VECTOR:] = math.nan
    return out


def _shift(flat):
    """Rows stored one place later, the first one twice."""
    return torch.cat([flat[:, :1], flat[:, :-1]], 1)


def _last_row_again(flat):
    """Rows past the last whole tile of 4, stored by clamping: each holds the tile's first."""
    index = torch.arange(flat.shape[1])
    return flat[
        :, torch.where(index >= (len(index) - 1) // 4 * 4, (len(index) - 1) // 4 * 4, index)
    ]


_ROWS = "another row|heads|out in another layout|the output of|another request"
_CHANNELS = "channel"
_STORED = "never written|uninitialised|rows missing"
WRONG: dict[str, tuple[Bug, str]] = {
    "tokens and heads of the output exchanged": (_out(_tokens_first), _ROWS),
    "heads stored with the group outside": (stored(_group_first), f"{_ROWS}|interleaved"),
    "vectors of channels stored with a swizzle": (_of_rows(_unswizzled), f"{_CHANNELS}|layout"),
    "vectors of K loaded without their swizzle": (
        scored(_k_vectors),
        f"{K_KEYS}|{_CHANNELS}",
    ),
    "vectors of V loaded with another swizzle": (valued(_v_vectors), f"{V_KEYS}|{_CHANNELS}"),
    "vectors of Q swizzled by their rows": (
        scored(_q_vectors),
        f"{_CHANNELS}|^Q |the query|Q of",
    ),
    "pairs of channels exchanged": (
        _out(lambda out: out[..., swapped_pairs(out.shape[-1])]),
        _CHANNELS,
    ),
    "odd channels of V from the key beside": (
        valued(_odd_channels_of_v),
        f"{V_KEYS}|{_CHANNELS}",
    ),
    "channels after the last whole 32 not stored": (
        _out(_tail_channels),
        f"{_CHANNELS}|never written|uninitialised",
    ),
    "the last vector stored too early": (_out(_last_vector_back), f"{_CHANNELS}|never written"),
    "squares of rows and channels transposed": (
        _of_rows(_tile_transposed),
        f"layout|{_CHANNELS}|another row",
    ),
    "the upper half of a tile in the lower half's place": (_of_rows(_half_of_rows), _ROWS),
    "the last rows of tiles not stored": (_of_rows(_unstored_rows), f"{_STORED}|row"),
    "rows stored with a padded stride": (_out(_padded_stride), f"layout|{_CHANNELS}|another row"),
    "rows stored one place later": (_of_rows(_shift), _ROWS),
    "the last rows like the first of their tile": (_of_rows(_last_row_again), _ROWS),
    "outputs of requests in another order": (_out(lambda out: out.roll(1, 0)), _ROWS),
    "a second division by l": (_divided_twice, f"{FACTOR}|not divided"),
    "the root of l": (_root, FACTOR),
    "a reciprocal of 4 bits": (_rough_reciprocal, f"{FACTOR}|l accumulated"),
    "one l for four rows": (_one_l_for_tile, f"{DIVISOR}|factor for each"),
    "half of the channels not rescaled": (_half_not_rescaled, f"{RESCALE}|{_CHANNELS}"),
    "a gate by head applied early": (stored(_gated), FACTOR),
    "the scale of V applied by half of the heads": (
        _out(lambda out: _half_of_heads(out, 0.6)),
        FACTOR,
    ),
    "the sign lost in half of the heads": (
        _out(lambda out: _half_of_heads(out, -1.0)),
        f"{FACTOR}|wrong sign",
    ),
    "scales of V's channels from the neighbour": (
        valued(lambda w: _channel_scales(w.v)),
        f"{_CHANNELS}|V by a factor|factor for each",
    ),
    "NaN in the last vector of some rows": (stored(_nan_rows), "NaN or inf"),
}
"""Name: the bug, and a pattern that a right name for it matches."""

"""Bugs of the sixteenth set in the scores: scales, rotations, channels and biases."""

import math
from collections.abc import Callable

import torch

from labkernels.measure.strangers.looked_at.sixteenth.frame import in_group, largest, turned
from labkernels.measure.strangers.wrong import Work, keys_of, places, scored


def _padded_width(w: Work):
    """Scale by the width that is padded to a power of two, or to half as much again."""
    d = w.q.shape[-1]
    padded = 2 ** math.ceil(math.log2(d))
    return w.s * (d / (padded if padded > d else 1.5 * d)) ** 0.5


def _half_scaled(w: Work):
    """Scale a sum between two steps of channels, so that the second step stays as it is."""
    k, half = w.k.clone(), w.k.shape[-1] // 2
    k[..., half:] /= w.call.scale
    return w.scores(k=k)


def _by_length(w: Work):
    """Scale each query by the logarithm of its place, as models for long contexts ask."""
    place = places(w)[0].double()
    return w.s * (torch.log(place + 2) / math.log(64))


def _interleaved(w: Work):
    """Take K's channels for pairs of neighbours, where Q has them in halves."""
    d = w.k.shape[-1]
    return w.scores(k=torch.cat([w.k[..., 0::2], w.k[..., 1::2]], -1) if d > 1 else w.k)


def _shifted_cache(w: Work):
    """Turn K as if 8 tokens after the first 4 had not been thrown away."""
    return w.scores(k=turned(w.k, torch.where(keys_of(w) < 4, 0, 8)))


def _query_turned_again(w: Work):
    return w.scores(q=turned(w.q, places(w)[0][:, 0]))


def _normed(x):
    size = x.square().mean(-1, keepdim=True).sqrt()
    return x / torch.where(size == 0, torch.ones_like(size), size)


def _smoothed(w: Work):
    """Multiply K's channels by factors that Q is not divided by."""
    top = largest(w.k[:, :1], 0, 2)
    return w.scores(k=w.k * (top / top.mean()) ** 0.5)


def _tile_means_off(w: Work, tile: int = 32):
    """Take the mean key off each tile of K, where it is the same for all keys in a tile alone."""
    parts = [k - k.mean(2, keepdim=True) for k in w.k.split(tile, 2)]
    return w.scores(k=torch.cat(parts, 2))


def _mean_query_off(w: Work):
    """Take the mean query of a group off, and do not add its scores."""
    mean = w.q.unflatten(1, (-1, w.call.group)).mean((2, 3), keepdim=True)
    return w.scores(q=(w.q.unflatten(1, (-1, w.call.group)) - mean).flatten(1, 2))


def _without_last_quarter(w: Work, by: float):
    """Count the channels of the last quarter, which hold places in some models, `by` times."""
    q, n = w.q.clone(), max(1, w.q.shape[-1] // 4)
    q[..., -n:] *= by
    return w.scores(q=q)


def _second_box_reads_first(w: Work):
    """Read the first half of K's channels for the second half."""
    k, half = w.k.clone(), w.k.shape[-1] // 2
    k[..., half : 2 * half] = w.k[..., :half]
    return w.scores(k=k)


def _swizzled(w: Work):
    """Read K's chunks of 8 channels where a swizzle by the key's number has put others."""
    chunks = w.k.shape[-1] // 32 * 4
    channel, key = torch.arange(w.k.shape[-1]), keys_of(w)[:, None]
    moved = torch.where(channel < 8 * chunks, channel ^ (key % 4 * 8), channel)
    return w.scores(k=w.k.gather(-1, moved.expand(w.k.shape)))


def _padded_rows(w: Work, tile: int = 16, pad: int = 8):
    """Read rows of a tile of K without the 8 numbers of padding between them."""
    n, d = w.k.shape[2:]
    row, first = keys_of(w) % tile, keys_of(w) // tile * tile
    flat = row[:, None] * d + torch.arange(d)
    source, channel = flat // (d + pad), flat % (d + pad)
    key = (first[:, None] + source).clamp(max=n - 1)
    found = w.k[:, :, key, channel.clamp(max=d - 1)]
    return w.scores(k=torch.where(channel < d, found, 0.0))


BUGS: dict[str, Callable] = {
    "scale of the width with its padding": scored(_padded_width),
    "the scale between two steps of channels": scored(_half_scaled),
    "exp2 of natural scores": scored(lambda w: w.s * math.log(2)),
    "scores over the layer's number, 3": scored(lambda w: w.s / 3),
    "queries by the logarithm of their place": scored(_by_length),
    "channels of K by neighbours, of Q by halves": scored(_interleaved),
    "K not turned back after an eviction": scored(_shifted_cache),
    "Q turned by its place once more": scored(_query_turned_again),
    "Q normed once more": scored(lambda w: w.scores(q=_normed(w.q))),
    "smoothing factors in K alone": scored(_smoothed),
    "the mean key of each tile taken off": scored(_tile_means_off),
    "the mean query taken off for good": scored(_mean_query_off),
    "the channels of places left out": scored(lambda w: _without_last_quarter(w, 0.0)),
    "the channels of places added twice": scored(lambda w: _without_last_quarter(w, 2.0)),
    "the second box of K's channels reads the first": scored(_second_box_reads_first),
    "K's chunks where a swizzle put them": scored(_swizzled),
    "K's tile read without its padding": scored(_padded_rows),
    "the first head's query for its whole group": scored(
        lambda w: w.scores(q=in_group(w, w.q, [0] * w.call.group))
    ),
}
"""Name: the bug."""

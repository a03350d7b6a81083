"""Bugs in rotations, in the order of channels, in what latent heads share, and in scores."""

import math

import torch

from labkernels.measure.strangers.bugs import Bug, rope
from labkernels.measure.strangers.looked_at.sixteenth.frame import reading, turned
from labkernels.measure.strangers.wrong import Work, distances, keys_of, places, scored, valued


def _from_the_page(w: Work, k):
    """Places of K count from the first key of each page."""
    return turned(k, keys_of(w) % 16 - keys_of(w))


def _shifted_twice(w: Work, k):
    """The keys that a context shift moved are turned once more."""
    key = keys_of(w)
    return turned(k, torch.where(key >= len(key) // 4, -(len(key) // 8), 0))


def _in_pairs(x, place):
    """Return x turned by neighbouring channels, after the turn by halves is taken back."""
    even = x.shape[-1] // 2 * 2
    back = turned(x, -place)
    pairs = rope(back[..., :even], interleaved=True, base=1e4, first=int(place[0]))
    return torch.cat([pairs, back[..., even:]], -1)


def _pairs_for_halves(w: Work):
    query, key = places(w)
    return w.scores(_in_pairs(w.q, query[:, 0]), _in_pairs(w.k, key[0]))


def _last_quarter_of_one(w: Work, k):
    """The last quarter of the channels is the first KV head's, as if all heads shared it."""
    quarter = max(k.shape[-1] // 4, 1)
    shared = k[:, :1, :, -quarter:].expand(*k.shape[:3], quarter)
    return torch.cat([k[..., :-quarter], shared], -1)


def _values_of_k(w: Work):
    """V is taken from K, as if both were one latent row."""
    channels = min(w.k.shape[-1], w.v.shape[-1])
    return torch.cat([w.k[..., :channels], w.v[..., channels:]], -1)


def _chunks_by_parity(w: Work, v):
    """Chunks of 8 channels change places in odd keys."""
    channel = torch.arange(v.shape[-1])
    other = torch.where(channel ^ 8 < len(channel), channel ^ 8, channel)
    return torch.where((keys_of(w) % 2 == 1)[:, None], v[..., other], v)


def _blocks_turned(w: Work, k):
    """Blocks of 8 keys by 8 channels are transposed."""
    keys, channels = (n // 8 * 8 for n in k.shape[2:])
    k = k.clone()
    blocks = k[:, :, :keys, :channels].unflatten(3, (-1, 8)).unflatten(2, (-1, 8))
    k[:, :, :keys, :channels] = blocks.transpose(3, 5).flatten(4, 5).flatten(2, 3)
    return k


def _hadamard(w: Work):
    """Q is multiplied by a Hadamard matrix of 16 channels, and K is not."""
    one = torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64)
    four = torch.kron(one, one)
    matrix = torch.kron(four, four) / 4
    whole = w.q.shape[-1] // 16 * 16
    q = (w.q[..., :whole].unflatten(-1, (-1, 16)) @ matrix).flatten(-2)
    return w.scores(q=torch.cat([q, w.q[..., whole:]], -1))


def _normed(w: Work, k):
    return k / (k**2).mean(-1, keepdim=True).clamp(min=1e-12).sqrt()


def _by_log_of_place(w: Work):
    """Scores of queries after the 64th place grow with the logarithm of the place."""
    return w.s * ((places(w)[0] + 1).double().log() / math.log(64)).clamp(min=1)


def _bucketed(w: Work):
    """A bias by the octave of the distance, which was not asked for."""
    return w.s - 0.25 * torch.floor(torch.log2(1 + distances(w.s).abs()))


def _by_head(w: Work):
    """Each head has a temperature of its own."""
    return w.s * (1 + 0.06 * torch.arange(w.s.shape[1]).double())[:, None, None]


def _even_rows(w: Work):
    row = torch.arange(w.q.shape[2])
    return w.scores(q=w.q[:, :, row - row % 2])


BUGS: dict[str, Bug] = {
    "K's places count from the page": reading(k=_from_the_page),
    "a context shift applied twice": reading(k=_shifted_twice),
    "RoPE by pairs where halves were asked for": scored(_pairs_for_halves),
    "K's last quarter from the first KV head": reading(k=_last_quarter_of_one),
    "V taken from K": valued(_values_of_k),
    "V's chunks swapped in odd keys": reading(v=_chunks_by_parity),
    "blocks of K turned": reading(k=_blocks_turned),
    "a Hadamard matrix on Q alone": scored(_hadamard),
    "K normed once more": reading(k=_normed),
    "scores by the logarithm of the place": scored(_by_log_of_place),
    "odd keys scored by the key before": reading(
        k=lambda w, k: k[:, :, keys_of(w) - keys_of(w) % 2]
    ),
    "a bias by octaves of the distance": scored(_bucketed),
    "temperatures that grow with the head": scored(_by_head),
    "odd rows with Q of the row before": scored(_even_rows),
}
"""By name: a function of the work that returns the wrong output."""

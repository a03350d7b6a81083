"""Bugs inside a thread block: stages, fragments, swizzles, warps, and the way out."""

import torch
from torch.nn.functional import pad

from labkernels.measure.strangers.bugs import Bug
from labkernels.measure.strangers.looked_at.fourteenth import words
from labkernels.measure.strangers.looked_at.fourteenth.frame import (
    cast,
    chunks,
    divided,
    for_queries,
    keys,
    kv_heads,
    of_k,
    of_q,
    of_v,
    packed_rows,
    rows,
    unpacked_rows,
    weights,
    where_keys,
)
from labkernels.measure.strangers.wrong import Work, attend, keys_read, stored


def _second_slab_of_the_next_row(w: Work, q):
    half = q.shape[-1] // 2
    all_rows = q.flatten(1, 2)
    slab = all_rows.roll(-1, 1)[..., half:].reshape_as(q[..., half:])
    return torch.cat([q[..., :half], slab], -1)


def _second_slab_of_the_next_tile(w: Work, k):
    half = k.shape[-1] // 2
    later = keys(w) + 32
    later = torch.where(later < k.shape[2], later, keys(w))
    return torch.cat([k[..., :half], k[:, :, later, half:]], -1)


def _stale(first: int, back: int):
    """Keys from `first` on in each tile of 32 are those of `back` keys before."""

    def index(w: Work):
        old = (keys(w) % 32 >= first) & (keys(w) >= back)
        return torch.where(old, keys(w) - back, keys(w))

    return index


def _two_tiles_ahead(w: Work):
    ahead = keys(w) + 64
    return torch.where((keys(w) % 32 < 8) & (ahead < w.k.shape[2]), ahead, keys(w))


def _even_again(w: Work):
    return torch.where(keys(w) // 32 % 2 == 1, keys(w) - 32, keys(w))


def _blocks_transposed(x):
    """Whole blocks of 8 by 8 in the last two dimensions are transposed."""
    n, d = (size // 8 * 8 for size in x.shape[-2:])
    x = x.clone()
    block = x[..., :n, :d].unflatten(-1, (-1, 8)).unflatten(-3, (-1, 8))
    x[..., :n, :d] = block.transpose(-1, -3).flatten(-4, -3).flatten(-2, -1)
    return x


def _another_swizzle(w: Work, k):
    """Chunks of 8 channels are stored by key % 8, and read by key // 2 % 4."""
    out = k.clone()
    for row in range(8):
        other = chunks(k, lambda i, by=row ^ (row // 2): i ^ by)
        out[:, :, row::8] = other[:, :, row::8]
    return out


def _in_the_order_of_sums(w: Work):
    """Of 16 columns of P, a lane has 2 t, 2 t + 1, 2 t + 8, 2 t + 9; V takes four in a row."""
    order = torch.tensor([0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15])
    read = keys(w) // 16 * 16 + order[keys(w) % 16]
    return torch.where(keys(w) // 16 * 16 + 16 <= w.k.shape[2], read, keys(w))


def _groups_of_one_more(w: Work):
    head = torch.arange(w.q.shape[1]) // (w.call.group + 1)
    k, v = (kv_heads(w, x)[:, head] for x in (w.k, w.v))
    return attend(w.scores(k=k), v, w.call.q.dtype)


def _by_remainder(w: Work, v):
    kv = kv_heads(w, v)
    return kv[:, torch.arange(v.shape[1]) % kv.shape[1]]


def _padded_but_not_read_so(w: Work, out):
    all_rows = packed_rows(w, out)
    n, d = all_rows.shape[-2:]
    flat = pad(all_rows, (0, 8)).flatten(-2)[..., : n * d]
    return unpacked_rows(w, flat.unflatten(-1, (n, d)))


def _chunks_of_odd_rows(w: Work, out):
    odd = (rows(w) + torch.arange(out.shape[1])[:, None, None]) % 2 == 1
    return torch.where(odd, chunks(out, lambda i: i ^ 1), out)


def _added(w: Work, out):
    before = out.roll(1, 0)
    before[0] = 0
    return out + before


def _row_of_a_pair(w: Work):
    p = weights(w.s)
    l = p.sum(-1, keepdim=True)
    pairs = l.flatten(1, 2)
    even = torch.arange(pairs.shape[1]) // 2 * 2
    return divided(w, cast(w, p) @ w.v, pairs[:, even].reshape_as(l))


def _no_newton_step(w: Work):
    """The reciprocal of l is guessed from its bits alone."""
    p = weights(w.s)
    l = p.sum(-1, keepdim=True).clamp(min=1e-9)
    guess = (0x7EF311C7 - l.float().contiguous().view(torch.int32)).view(torch.float32)
    return (cast(w, p) @ w.v * guess.double()).to(w.call.q.dtype)


def _first_rows_of_v_by_head(w: Work, v):
    """The first 4 keys of each tile of 32 come from the KV head after."""
    after = for_queries(w, kv_heads(w, v).roll(-1, 1))
    return where_keys(keys(w) % 32 < 4, after, v)


WRONG: dict[str, tuple[Bug, str]] = {
    "second slab of q of the next row": (of_q(_second_slab_of_the_next_row), words.Q_SLAB),
    "second slab of K of the next tile": (of_k(_second_slab_of_the_next_tile), words.K_CHANNELS),
    "upper half of a tile of V not arrived": (
        of_v(lambda w, v: v[:, :, _stale(16, 32)(w)]),
        words.V_READ,
    ),
    "last quarter of a tile of K and V two stages old": (keys_read(_stale(24, 64)), words.READ),
    "K's first rows overwritten by two tiles ahead": (
        of_k(lambda w, k: k[:, :, _two_tiles_ahead(w)]),
        words.K_READ,
    ),
    "odd tiles are the even ones again": (keys_read(_even_again), words.EVEN),
    "blocks of V not transposed": (of_v(lambda w, v: _blocks_transposed(v)), words.V_BLOCKS),
    "swizzle of K of another width": (of_k(_another_swizzle), words.K_CHANNELS),
    "V's keys in the order of the accumulator": (
        of_v(lambda w, v: v[:, :, _in_the_order_of_sums(w)]),
        f"{words.V_READ}|K read (in|from)",
    ),
    "groups of one query head more": (_groups_of_one_more, words.GROUPS),
    "KV heads of V by the remainder, of K by the quotient": (of_v(_by_remainder), words.V_HEAD),
    "blocks of the output stored transposed": (
        stored(lambda w, out: _blocks_transposed(out)),
        words.TRANSPOSED,
    ),
    "rows staged with padding, read without": (stored(_padded_but_not_read_so), words.STRIDE),
    "chunks of odd rows exchanged": (stored(_chunks_of_odd_rows), words.CHANNELS),
    "output added to the request before": (stored(_added), words.NOT_CLEARED),
    "denominator of the even row for its pair": (_row_of_a_pair, words.ROW),
    "reciprocal without its Newton step": (_no_newton_step, words.ROW_FACTOR),
    "first keys of V's tiles of the head after": (of_v(_first_rows_of_v_by_head), words.V_SOME),
}

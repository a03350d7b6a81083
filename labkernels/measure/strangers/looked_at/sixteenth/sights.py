"""Bugs of the sixteenth set in what a query sees: masks, lengths, windows, caps, slopes, sinks."""

import math
from collections.abc import Callable

import torch

from labkernels.measure.strangers.inputs import Asked
from labkernels.measure.strangers.looked_at.sixteenth.frame import seeing, unmasked
from labkernels.measure.strangers.wrong import (
    Work,
    attend,
    distances,
    keys_of,
    masked,
    places,
    scored,
)

_WINDOW, _CAP, _LONG = 36, 2.5, 30.0
_ASKED = {
    "window": Asked(window_left=_WINDOW),
    "cap": Asked(soft_cap=_CAP),
    "high cap": Asked(soft_cap=_LONG),
    "alibi": Asked(alibi=True),
    "sinks": Asked(sinks=True),
}


def _rows(w: Work):
    return torch.arange(w.q.shape[2])[:, None]


def _by_tile(w: Work, tile: int, last: int):
    """Hide keys as one row of each tile of queries does."""
    place, key = places(w)
    row = (_rows(w) // tile * tile + last).clamp(max=w.q.shape[2] - 1)
    return (key > place[row[:, 0]]) if w.call.causal else w.hidden


def _causal_or(w: Work, hide):
    return hide if w.call.causal else w.hidden


def _packed_rows(w: Work):
    """Take a packed row, a query and a head of its group, for the query."""
    m, n = w.s.shape[-2:]
    head = torch.arange(w.s.shape[1])[:, None, None] % w.call.group
    hide = keys_of(w) > n - m + _rows(w) * w.call.group + head
    return hide if w.call.causal else w.hidden.expand(hide.shape)


def _whole_bytes(w: Work):
    """Read the bits of a custom mask with rows of whole bytes, though they lie without gaps."""
    n = w.s.shape[-1]
    bits = w.hidden.flatten()
    at = _rows(w) * (n // 8 * 8) + keys_of(w)
    return bits[at.clamp(max=bits.numel() - 1)]


def _tail_mask_on_all_tiles(w: Work, tile: int = 64):
    rest = w.s.shape[-1] % tile
    return w.hidden | ((keys_of(w) % tile >= rest) if rest else torch.zeros(()).bool())


def _zigzag(w: Work):
    """Mask keys by places in a ring's order: the first and the last eighth, then the next two."""
    n = w.s.shape[-1]
    size = -(-n // 8)
    order = torch.tensor([0, 7, 1, 6, 2, 5, 3, 4])
    place_of = order[keys_of(w) // size] * size + keys_of(w) % size
    return _causal_or(w, place_of.clamp(max=n - 1) > places(w)[0])


def _padded(w: Work, to: int):
    """Count keys of zeros up to a whole tile."""
    short = -w.s.shape[-1] % to
    s = torch.cat([w.s, torch.zeros(*w.s.shape[:3], short).double()], -1)
    v = torch.cat([w.v, torch.zeros(*w.v.shape[:2], short, w.v.shape[-1]).double()], 2)
    return attend(s, v, w.call.q.dtype)


def _last_key_again(w: Work, to: int = 32):
    """Count the last key for each missing key of a tile, as an index that is clamped does."""
    n = w.s.shape[-1]
    index = torch.arange(n + -n % to).clamp(max=n - 1)
    return attend(w.s[..., index], w.v[:, :, index], w.call.q.dtype)


def _lengths_of_others(w: Work):
    """Let each request but the first be shorter by 9 keys for each request before it."""
    n = w.s.shape[-1]
    length = n - 9 * torch.arange(w.s.shape[0])[:, None, None, None]
    return attend(masked(w.s, keys_of(w) >= length.clamp(min=1)), w.v, w.call.q.dtype)


def _beyond_the_chunk(w: Work):
    """Let rows of the first half see the keys of the whole chunk."""
    early = _rows(w) < w.q.shape[2] // 2
    return w.hidden & ~early


def _blind_drafts(w: Work):
    """Let a drafted token see the cache and itself, and no other drafted token."""
    place, key = places(w)
    return w.hidden | ((key >= w.s.shape[-1] - w.s.shape[-2]) & (key != place))


def _seen(hide: Callable) -> Callable:
    """Return a bug in a window: hide(query's place, key) is True where a key is out of it."""

    def bug(w: Work):
        place, key = places(w)
        return attend(masked(unmasked(w), (key > place) | hide(place, key)), w.v, w.call.q.dtype)

    return bug


def _unscaled_cap(w: Work):
    """Cap products before the scale."""
    s = w.q @ w.k.mT
    cap = w.call.asked.soft_cap
    return masked(cap * torch.tanh(s / cap) * w.call.scale, w.hidden)


def _natural(w: Work):
    """Return scores without a cap, hidden keys too."""
    return w.q @ w.k.mT * w.call.scale


def _clamped(w: Work):
    return masked(_natural(w).clamp(-_CAP, _CAP), w.hidden)


def _cap_in_base_2(w: Work):
    """Compare scores times log2 e with a cap that is not."""
    by = math.log2(math.e)
    return masked(_CAP / by * torch.tanh(_natural(w) * by / _CAP), w.hidden)


def _with_slopes(slopes: Callable, far: Callable = distances) -> Callable:
    """Return scores with other slopes [Hq] or distances [M, L]."""

    def scores(w: Work):
        by = slopes(w.call.slopes.double(), w)[:, None, None]
        return masked(_natural(w) - by * far(w.s), w.hidden)

    return scores


def _by_kv_head(slopes, w: Work):
    return slopes[torch.arange(len(slopes)) // w.call.group]


def _of_power_of_two(slopes, w: Work):
    """Count slopes for the next power of two, and one more head."""
    heads = 2 ** math.ceil(math.log2(len(slopes) + 1))
    return torch.exp2(-8 * torch.arange(1, len(slopes) + 1).double() / heads)


def _from_its_row(s):
    """Count the distance from a query's number in its chunk, without a sign."""
    m, n = s.shape[-2:]
    return (torch.arange(m)[:, None] - torch.arange(n)).abs().double()


def _with_sinks(change: Callable, times: float = 1.0) -> Callable:
    """Return a bug in the sinks: change(work, logits) returns them."""

    def bug(w: Work):
        logits = change(w, w.call.sinks.double()) + math.log(times)
        return attend(w.s, w.v, w.call.q.dtype, sinks=logits)

    return bug


def _sink_in_each_split(w: Work):
    """Add the sinks to each split of 64 keys."""
    count = -(-w.s.shape[-1] // 64) + (w.s.shape[-1] <= 64)
    return _with_sinks(lambda w, x: x, count)(w)


def _sinks_by_packed_row(w: Work, x):
    """Take the sink of a packed row's number, which goes through the groups' heads in turn."""
    return x.reshape(-1, w.call.group).T.flatten()


_OF_ASKED: dict[str, tuple[str, Callable]] = {
    "a window of the last query for all": ("window", _seen(lambda at, key: key < at.amax() - 36)),
    "a window rounded up to whole tiles": (
        "window",
        _seen(lambda at, key: key < (at - _WINDOW) // 32 * 32),
    ),
    "the cap before the scale": ("high cap", scored(_unscaled_cap)),
    "a clamp for the cap": ("cap", scored(_clamped)),
    "the cap in base 2": ("cap", scored(_cap_in_base_2)),
    "slopes by KV head": ("alibi", scored(_with_slopes(_by_kv_head))),
    "slopes for a power of two heads": ("alibi", scored(_with_slopes(_of_power_of_two))),
    "distances without a sign from a chunk's row": (
        "alibi",
        scored(_with_slopes(lambda x, w: x, _from_its_row)),
    ),
    "a sink in each split": ("sinks", _sink_in_each_split),
    "sinks in an order of packed rows": ("sinks", _with_sinks(_sinks_by_packed_row)),
}
BUGS: dict[str, Callable] = {
    "rows of a tile of 16 see what its last row sees": seeing(lambda w: _by_tile(w, 16, 15)),
    "rows of a tile of 8 see what its first row sees": seeing(lambda w: _by_tile(w, 8, 0)),
    "a packed row masked as a query": seeing(_packed_rows),
    "bits of the mask read with whole bytes a row": seeing(_whole_bytes),
    "the tail's mask on every tile": seeing(_tail_mask_on_all_tiles),
    "a ring's order of chunks in the mask": seeing(_zigzag),
    "zero keys up to a tile of 64": lambda w: _padded(w, 64 if w.s.shape[-1] % 64 else 96),
    "the last key for all missing ones": _last_key_again,
    "the length rounded down to whole pages": seeing(
        lambda w: w.hidden | (keys_of(w) >= max(1, (w.s.shape[-1] - 1) // 16 * 16))
    ),
    "the length before the append": seeing(
        lambda w: w.hidden | (keys_of(w) >= max(1, w.s.shape[-1] - w.s.shape[-2]))
    ),
    "lengths summed over requests": _lengths_of_others,
    "early rows see to the end of the chunk": seeing(_beyond_the_chunk),
    "drafted tokens blind to each other": seeing(_blind_drafts),
    "token 0 taken for padding": seeing(
        lambda w: w.hidden | ((keys_of(w) == 0) & (w.s.shape[-1] > 1))
    ),
    "a key between two splits left out": seeing(
        lambda w: w.hidden | (keys_of(w) % 40 == 39) & (keys_of(w) < w.s.shape[-1] - 1)
    ),
} | {name: bug for name, (_, bug) in _OF_ASKED.items()}
"""Name: the bug."""
ASKED: dict[str, Asked] = {name: _ASKED[asked] for name, (asked, _) in _OF_ASKED.items()}
"""What a bug needs to be asked for."""

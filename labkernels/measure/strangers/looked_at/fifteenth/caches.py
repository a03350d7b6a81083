"""Bugs of the cache: page tables, slots, offsets of requests, stale and missing tokens."""

import torch

from labkernels.measure.strangers.bugs import Bug
from labkernels.measure.strangers.looked_at.fifteenth.frame import (
    PAGE,
    keys,
    noise,
    pooled,
    reading,
    tokens,
)
from labkernels.measure.strangers.wrong import Work


def _at(index):
    """What is read at the keys index(keys, their number)."""

    def change(w: Work, x):
        n = w.k.shape[2]
        return x[:, :, index(keys(w), n).clamp(0, n - 1)]

    return change


def _where(which, other):
    """Keys for which which(keys, their number) holds are those of other(work, x)."""

    def change(w: Work, x):
        some = which(keys(w), w.k.shape[2])[:, None]
        return torch.where(some, other(w, x), x)

    return change


def _ring(j, n, left: int = 12):
    return torch.where((j < left) & (n > 2 * left), n - left + j, j)


def _appended_early(w: Work, x):
    n, m = w.k.shape[2], w.q.shape[2]
    j = keys(w)
    out = x[:, :, torch.where(j >= n - m - 1, j + 1, j).clamp(max=n - 1)].clone()
    out[:, :, -1] = 0
    return out


def _padded_offsets(w: Work):
    start = torch.arange(w.k.shape[0])[:, None] * (-w.k.shape[2] % 32)
    return tokens(w) + start


def _table_row_short(w: Work):
    return tokens(w) - PAGE * torch.arange(w.k.shape[0])[:, None]


BUGS: dict[str, Bug] = {
    "table of the request before": reading(lambda w, x: x.roll(1, 0)),
    "rows of the table one page short": reading(pooled(_table_row_short)),
    "places in the pool modulo 256": reading(pooled(lambda w: tokens(w) % 256)),
    "V's requests start at padded places": reading(pooled(_padded_offsets), "v"),
    "table of pages of 16 read by pages of 32": reading(_at(lambda j, n: j // 32 * PAGE + j % 32)),
    "V's pages ahead in each second half tile": reading(
        _at(lambda j, n: torch.where(j // 32 % 2 == 1, j + 32, j)), "v"
    ),
    "first pages of the first request": reading(
        _where(lambda j, n: j < min(48, n // 2), lambda w, x: x[:1].expand_as(x))
    ),
    "a page of zeros in the table": reading(
        _where(lambda j, n: (j // PAGE == 3) & (n > 4 * PAGE - 8), lambda w, x: torch.zeros_like(x))
    ),
    "a page of a finished request": reading(
        _where(lambda j, n: j // PAGE == min(2, (n - 1) // PAGE), lambda w, x: noise(x))
    ),
    "oldest slots of the ring overwritten": reading(_at(_ring)),
    "new tokens appended one slot early": reading(_appended_early),
    "later half from the other beam": reading(
        _where(lambda j, n: j >= n // 2, lambda w, x: x.roll(1, 0))
    ),
    "a page twice in the table": reading(
        _at(lambda j, n: torch.where(j >= 4 * PAGE, j - PAGE, j) if n > 4 * PAGE else j - 1)
    ),
    "K not yet written, V written": reading(
        _where(lambda j, n: j >= n - max(1, n // 16), lambda w, x: torch.zeros_like(x)), "k"
    ),
}
"""Name: the bug."""

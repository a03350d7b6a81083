"""Bugs of the third set in what is stored: wrong rows and channels, factors, old memory."""

import torch

from labkernels.measure.strangers.bugs import Bug
from labkernels.measure.strangers.wrong import Work, stored

_HEADS = "another row|heads|of another head"
_FACTOR = "factor|common mode|times|denominator"


def _order(n: int, of) -> torch.Tensor:
    return torch.tensor([of(i) for i in range(n)]).clamp(max=n - 1)


def _by_head(out, factors):
    return (out.double() * factors[:, None, None]).to(out.dtype)


def _fragments_transposed(out, side: int = 8):
    size = side * side
    n = out.shape[-1] // size * size
    if not n:
        return out.flip(-1)
    parts = out[..., :n].unflatten(-1, (-1, side, side)).mT.flatten(-3)
    return torch.cat([parts, out[..., n:]], -1)


def _tail_from_the_tile_before(out, tile: int = 16):
    n = out.shape[2]
    rest = n % tile or min(tile // 2, n - 1)
    found = out.clone()
    if n > rest > 0:
        found[:, :, n - rest :] = out[:, :, max(0, n - 2 * rest) : n - rest][:, :, :rest]
    return found


def _plus(out, other, factor: float):
    return (out.double() + factor * other.double()).to(out.dtype)


def _q_as_out(w: Work, out):
    q = w.call.q
    return q[..., : out.shape[-1]] if q.shape[-1] >= out.shape[-1] else out


def _checkerboard(out):
    found = out.clone()
    found.view(-1, out.shape[-1])[::3, 1::7] = 0
    return found


ROWS: dict[str, tuple[Bug, str]] = {
    "every head is head 0": (
        stored(lambda w, out: out[:, :1].expand_as(out).clone()),
        _HEADS,
    ),
    "heads in pairs swapped": (
        stored(lambda w, out: out[:, _order(out.shape[1], lambda i: i ^ 1)]),
        _HEADS,
    ),
    "rows of pairs of queries swapped": (
        stored(lambda w, out: out[:, :, _order(out.shape[2], lambda i: i ^ 1)]),
        "another row|quer",
    ),
    "last queries of the tile before": (
        stored(lambda w, out: _tail_from_the_tile_before(out)),
        "another row|quer",
    ),
    "fragments of 8 x 8 transposed": (
        stored(lambda w, out: _fragments_transposed(out)),
        "channels",
    ),
    "channels rolled by 24": (stored(lambda w, out: out.roll(24, -1)), "channels"),
    "channels of odd heads reversed": (
        stored(
            lambda w, out: torch.where(
                (torch.arange(out.shape[1]) % 2 == 1)[:, None, None], out.flip(-1), out
            )
        ),
        "channels",
    ),
    "channels 16 to 23 from before": (
        stored(lambda w, out: torch.cat([out[..., :16], out[..., 8:16], out[..., 24:]], -1)),
        "channels",
    ),
    "V scale of each head forgotten": (
        stored(lambda w, out: _by_head(out, 1 + 0.25 * torch.arange(out.shape[1]).double())),
        _FACTOR + "|scale",
    ),
    "divided by 1 - dropout": (stored(lambda w, out: (out / 0.9).to(out.dtype)), _FACTOR),
    "sign lost": (stored(lambda w, out: -out), _FACTOR + "|sign"),
    "added to the buffer twice": (stored(lambda w, out: out + out), _FACTOR),
    "half of the next head added": (
        stored(lambda w, out: _plus(out, out.roll(1, 1), 0.5)),
        "another row|added|stale|accumul",
    ),
    "query added to the output": (
        stored(lambda w, out: _plus(out, _q_as_out(w, out), 1.0)),
        "query|residual|added",
    ),
    "queries where outputs were due": (
        stored(lambda w, out: torch.where(_late(out), _q_as_out(w, out), out)),
        "uninitialised|never written|overwritten|another row|query",
    ),
    "some channels of some rows 0": (
        stored(lambda w, out: _checkerboard(out)),
        "never written|channels|outliers|0",
    ),
}
"""Name: the bug, and a pattern that a right name for it matches."""


def _late(out):
    rows = torch.arange(out.shape[0] * out.shape[1]).reshape(out.shape[:2])
    return (rows % 3 == 2)[..., None, None].expand_as(out)

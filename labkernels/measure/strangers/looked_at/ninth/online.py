"""Bugs in the online softmax, in splits and in their merge."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from labkernels.measure.strangers.looked_at.ninth.reads import LEFT_OUT
from labkernels.measure.strangers.wrong import Work, attend, keys_of, masked, parts, scored

RESCALE = r"(?i)rescal|\balpha\b|correction|running max|row max|stale max|\bmaximum"
DENOMINATOR = r"(?i)denominator|normalis|normaliz|\bsum\b|\bsums\b|\bl\b (is|not|of)"
DENOMINATOR += r"|\brows?\b.*\b(factor|times)\b|\b(factor|times)\b.*\brows?\b"
MERGE = (
    r"(?i)\bmerged?\b|\bmerges\b|\blse\b|log-sum-exp|\b(un)?weighted|combined?\b"
    r"|\bsplits?\b.*\b(weigh|weights?|outputs?|sums?|maxim)"
)
TWICE = r"(?i)twice|double|duplicated?|counted|overlap|two times|read again"


@dataclass(frozen=True)
class Tile:
    """One step of the online softmax. Shapes: s, p [.., M, keys]; m, top, l, alpha [.., M, 1]."""

    number: int
    last: bool
    m: torch.Tensor
    top: torch.Tensor
    p: torch.Tensor
    alpha: torch.Tensor
    pv: torch.Tensor
    l: torch.Tensor
    o: torch.Tensor

    @property
    def right(self):
        """l and o after the tile."""
        return self.l * self.alpha + self.sum, self.o * self.alpha + self.pv

    def rescaled_by(self, alpha_of_l, alpha_of_o):
        """l and o after the tile, by other factors."""
        return self.l * alpha_of_l + self.sum, self.o * alpha_of_o + self.pv

    @property
    def sum(self):
        """The sum of the tile's weights."""
        return self.p.sum(-1, keepdim=True)

    @property
    def jump(self):
        """The factor between weights against the old and the new maximum; 1 in the first tile."""
        far = (self.top - self.m.clamp(min=-1e9)).clamp(max=80.0)
        return torch.where(self.m == -math.inf, 1.0, torch.exp(far))


def _rounded(p, dtype):
    return p if dtype == torch.float32 else p.to(dtype).double()


def state_of(w: Work, block: int, step: Callable):
    """m, l and o after all keys; step(tile) gives l and o."""
    m = torch.full((*w.s.shape[:3], 1), -math.inf, dtype=torch.float64)
    l, o = torch.zeros_like(m), torch.zeros(*w.s.shape[:3], w.v.shape[-1]).double()
    n = w.s.shape[3]
    for number, first in enumerate(range(0, n, block)):
        s, v = (x for x in (w.s[..., first : first + block], w.v[:, :, first : first + block]))
        top = torch.maximum(m, s.amax(-1, keepdim=True))
        shift = top.masked_fill(top == -math.inf, 0.0)
        p, alpha = torch.exp(s - shift), torch.exp(m - shift)
        pv = _rounded(p, w.call.q.dtype) @ v
        l, o = step(Tile(number, first + block >= n, m, top, p, alpha, pv, l, o))
        m = top
    return m, l, o


def _divided(l, o):
    return o / torch.where(l == 0, torch.ones_like(l), l)


def _unless_same(w: Work, out, right):
    """The output, rounded; where the bug changed nothing, the output of any right kernel."""
    good = attend(w.s, w.v, w.call.q.dtype)
    return torch.where(out == right, good, out.to(w.call.q.dtype))


def swept(block: int, step: Callable, finish: Callable = _divided) -> Callable:
    """A bug in a step of the online softmax, or after the last."""

    def bug(w: Work):
        _, l, o = state_of(w, block, step)
        _, *right = state_of(w, block, lambda tile: tile.right)
        return _unless_same(w, finish(l, o), _divided(*right))

    return bug


def _merged(weights, part):
    return _divided(weights.sum(0), (weights * part).sum(0))


def combined(keys: int, change: Callable) -> Callable:
    """A bug in the merge of splits: change(weights, outputs) of the splits gives both anew.

    Shapes: weights [splits, B, Hq, M, 1], outputs [splits, B, Hq, M, Dv].
    """

    def bug(w: Work):
        m, l, o = parts(w, keys)
        weights = torch.exp(m - m.amax(0)) * l
        right = weights, _divided(l, o)
        return _unless_same(w, _merged(*change(*right)), _merged(*right))

    return bug


def _counted(weigh: Callable) -> Callable:
    """Keys that count more than once: weigh(keys, number of keys)."""
    return lambda w: attend(
        w.s, w.v, w.call.q.dtype, weights=weigh(keys_of(w), w.s.shape[3]).double()
    )


def _rows(x):
    return torch.arange(x.shape[2])


def _by_first_row(tile: Tile):
    """Factors of a kernel that asks the first of 16 rows whether the maximum moved."""
    moved = (tile.top > tile.m)[:, :, _rows(tile.l) // 16 * 16]
    return torch.where(moved | (tile.m == -math.inf), tile.alpha, 1.0)


def _lazy(tile: Tile):
    """Factors of a kernel that leaves out small steps, and uses the new maximum all the same."""
    return torch.where(tile.top - tile.m < 8 * math.log(2), 1.0, tile.alpha)


def _of_other_row(tile: Tile):
    row = _rows(tile.l)
    other = torch.where((row ^ 8) < len(row), row ^ 8, row)
    return tile.alpha[:, :, other]


def _last_sum(tile: Tile):
    l, o = tile.right
    return torch.where(tile.sum > 0, tile.sum, l), o


def _without_small(tile: Tile):
    """Tiles far below the maximum are skipped, with too small a distance."""
    small = tile.p.amax(-1, keepdim=True) < math.exp(-1)
    l, o = tile.right
    return torch.where(small, tile.l, l), torch.where(small, tile.o, o)


def _one_late(tile: Tile):
    """Half of the channels are computed by a warp that reads the maximum before it moves."""
    l, o = tile.right
    if tile.number == 1:
        half = (torch.arange(o.shape[-1]) < o.shape[-1] // 2).double()
        o = o + (tile.jump - 1) * tile.pv * half
    return l, o


def _pairs(x):
    """The lane of four that holds each column of 8."""
    return torch.arange(x) % 8 // 2


def _sum_of_one_lane(w: Work):
    m = w.s.amax(-1, keepdim=True)
    p = torch.exp(w.s - m)
    lane = (_pairs(p.shape[-1])[:, None] == torch.arange(4)).double()
    l = (p @ lane)[..., _pairs(w.v.shape[-1])]
    return _divided(l, _rounded(p, w.call.q.dtype) @ w.v).to(w.call.q.dtype)


def _maximum_of_one_lane(w: Work):
    m = w.s.amax(-1, keepdim=True)
    lane = _pairs(w.s.shape[-1])
    own = torch.stack([w.s[..., lane == i].amax(-1) for i in range(4)], -1)[..., lane]
    return attend(
        w.s, w.v, w.call.q.dtype, weights=torch.exp((m - own).masked_fill(own == -math.inf, 0.0))
    )


def _state_kept(w: Work):
    """A persistent kernel's second and later tiles of 16 rows start from the tile before."""
    m, l, o = state_of(w, 32, lambda tile: tile.right)
    right = _divided(l, o)
    for row in range(16, m.shape[2]):
        top = torch.maximum(m[:, :, row], m[:, :, row - 16])
        own, before = (torch.exp(m[:, :, at] - top) for at in (row, row - 16))
        l[:, :, row] = own * l[:, :, row] + before * l[:, :, row - 16]
        o[:, :, row] = own * o[:, :, row] + before * o[:, :, row - 16]
        m[:, :, row] = top
    return _unless_same(w, _divided(l, o), right)


def _strided(weights, part):
    """The buffer of the weights is written [head, split] and read [split, head]."""
    logs = weights.log()
    splits, b, heads, m, _ = logs.shape
    logs = logs.permute(2, 0, 1, 3, 4).reshape(splits, heads, b, m, 1).permute(0, 2, 1, 3, 4)
    top = logs.amax(0)
    return torch.exp(logs - top.masked_fill(top == -math.inf, 0.0)), part


def _rounded_logs(w: Work):
    m, l, o = parts(w, 32)
    lse = (m + l.log()).bfloat16().double()
    return _merged(torch.exp(lse - lse.amax(0)), _divided(l, o)).to(w.call.q.dtype)


def _not_divided(w: Work):
    m, l, o = parts(w, 32)
    lse = m + l.log()
    return (torch.exp(lse - lse.amax(0)) * _divided(l, o)).sum(0).to(w.call.q.dtype)


def _added_twice(w: Work):
    m, l, o = parts(w, 32)
    scale = torch.exp(m - m.amax(0))
    twice = 1.0 + (torch.arange(len(m)) == 1).double()[:, None, None, None, None]
    return _divided((scale * l).sum(0), (scale * o * twice).sum(0)).to(w.call.q.dtype)


def _merged_with_first(w: Work):
    m, l, o = parts(w, 16)
    weights, part = torch.exp(m - m.amax(0)) * l, _divided(l, o)
    out = part[0]
    for weight, new in zip(weights[1:], part[1:], strict=True):
        out = out + _divided(weights[0] + weight, weight) * (new - out)
    return out.to(w.call.q.dtype)


def _at(x, split: int, value):
    x = x.clone()
    x[split] = value
    return x


WRONG = {
    # exp2 for the correction and exp for the weights.
    "the correction takes exp2 of natural scores": (
        swept(16, lambda t: t.rescaled_by(*2 * [t.alpha ** math.log(2)])),
        RESCALE + r"|\blog2|base 2|\bexp2|log base",
    ),
    # A vote over the warp asks one row for all: the rows of a tile do not move together.
    "the first row of a tile decides whether all rows are rescaled": (
        swept(16, lambda t: t.rescaled_by(*2 * [_by_first_row(t)])),
        RESCALE,
    ),
    # Conditional rescaling keeps the new maximum where the old one should stay.
    "small steps of the maximum are not corrected for": (
        swept(16, lambda t: t.rescaled_by(*2 * [_lazy(t)])),
        RESCALE,
    ),
    # The correction is applied in the loop and once more by the correction warp.
    "the output is rescaled twice": (
        swept(16, lambda t: t.rescaled_by(t.alpha, t.alpha**2)),
        RESCALE,
    ),
    # The accumulator's second row in a thread takes the first row's factor.
    "the output of a row is rescaled by the factor of the row 8 away": (
        swept(16, lambda t: t.rescaled_by(t.alpha, _of_other_row(t))),
        RESCALE,
    ),
    # The weights of a tile are taken before the maximum is updated.
    "weights are taken against the maximum of the tile before": (
        swept(
            16,
            lambda t: (t.l * t.alpha + t.jump * t.sum, t.o * t.alpha + t.jump * t.pv),
        ),
        RESCALE + r"|weights? of (a|the|later) (tile|block)",
    ),
    # One warp of two reads the maximum too early, in one tile.
    "the second tile has a stale maximum in half of the channels": (
        swept(16, _one_late),
        RESCALE + r"|\bstale|\brace|half of the channels",
    ),
    # The sum is assigned and not added.
    "the denominator is the sum of the last tile": (swept(32, _last_sum), DENOMINATOR),
    # The epilogue's tile skips the sum.
    "the last tile is not in the denominator": (
        swept(32, lambda t: (t.right[0] - t.last * t.sum, t.right[1])),
        DENOMINATOR,
    ),
    # The sum is corrected with the factor of the tile after.
    "the denominator adds the tile before the correction": (
        swept(16, lambda t: ((t.l + t.sum) * t.alpha + (t.m == -math.inf) * t.sum, t.right[1])),
        DENOMINATOR + r"|rescal|maximum",
    ),
    # The output is divided in each tile, and the next correction does not know.
    "the output is divided by the sum in every tile": (
        swept(
            32,
            lambda t: (t.right[0], _divided(*t.right)),
            finish=lambda l, o: o,
        ),
        DENOMINATOR + r"|rescal|divid",
    ),
    # The shuffles that add the sums of four lanes are missing.
    "the denominator is that of one lane in four": (
        _sum_of_one_lane,
        DENOMINATOR + r"|\blanes?\b|reduc",
    ),
    # The shuffles that compare the maxima of four lanes are missing.
    "the maximum is that of one lane in four": (
        _maximum_of_one_lane,
        RESCALE + r"|\blanes?\b|reduc|\bweight",
    ),
    # The accumulators are not cleared between the tiles of a persistent kernel.
    "rows from 16 on start from the state of the row 16 before": (
        _state_kept,
        r"(?i)\breset|\bstate|cleared|another row|other row|row before|earlier row|\bquer|initial"
        r"|accumulator",
    ),
    # The prologue handles the first tile and the loop starts from it again.
    "the first tile of 32 keys is counted twice": (
        _counted(lambda key, n: 1 + (key < 32)),
        TWICE,
    ),
    # Splits overlap by the tile at their border.
    "the last 8 keys of each split of 32 are counted twice": (
        _counted(lambda key, n: 1 + (key % 32 >= 24)),
        TWICE,
    ),
    # A sparse kernel skips tiles that look small, with a threshold in the wrong units.
    "tiles with small weights are skipped": (
        swept(8, _without_small),
        LEFT_OUT + r"|(block|tile).?sparse|threshold|small weights",
    ),
    # The number of tiles of a split is rounded down.
    "the keys that do not fill 4 splits of whole eights are left out": (
        scored(lambda w: masked(w.s, keys_of(w) >= len(keys_of(w)) // 32 * 32)),
        LEFT_OUT + r"|last keys|keys at the end|\bsplits?\b",
    ),
    # A kernel for two halves stores one of them last.
    "the output is that of the last split that a row sees": (
        swept(
            64,
            lambda t: tuple(
                torch.where(t.sum > 0, new, old) for new, old in ((t.sum, t.l), (t.pv, t.o))
            ),
        ),
        MERGE + r"|\bsplits?\b|first keys|\bwindow|overwrit",
    ),
    # The log-sum-exp is read with the index of the next head.
    "splits are merged with the weights of the next head": (
        combined(16, lambda weights, part: (weights.roll(-1, 2), part)),
        MERGE,
    ),
    # The strides of the buffer of log-sum-exps are exchanged.
    "the weights of the splits are read with heads and splits exchanged": (
        combined(16, _strided),
        MERGE,
    ),
    # The log-sum-exps are stored like the partial outputs, in 16 bits.
    "the log-sum-exps of the splits are rounded to bf16": (
        _rounded_logs,
        MERGE + r"|partial",
    ),
    # The log-sum-exp is in base 2 and the merge takes exp of it.
    "the merge takes exp of base 2 log-sum-exps": (
        combined(16, lambda weights, part: (weights ** math.log2(math.e), part)),
        MERGE + r"|\blog2|base 2|log base",
    ),
    # The sum of the weights is left out.
    "the merge does not divide by the sum of its weights": (
        _not_divided,
        MERGE + r"|denominator|normalis|normaliz|factor",
    ),
    # The merge is launched before the last split has stored its output.
    "the output of the last split is still zero": (
        combined(32, lambda weights, part: (weights, _at(part, -1, 0.0))),
        MERGE + r"|\bsplits?\b|(not|never) (yet )?written",
    ),
    # Two blocks add the second split to the output.
    "the second split is added to the output twice": (
        _added_twice,
        MERGE + r"|\bsplits?\b|partial|" + TWICE[4:],
    ),
    # The row's offset of the second split is one too large.
    "the second split's outputs belong to the row before": (
        combined(
            16,
            lambda weights, part: (weights, _at(part, 1, part[min(1, len(part) - 1)].roll(1, 2))),
        ),
        MERGE + r"|\bsplits?\b|partial|another row|other rows?",
    ),
    # An empty split stores a log-sum-exp of 0 in place of minus infinity.
    "an empty split counts with a log-sum-exp of 0": (
        lambda w: attend(w.s, w.v, w.call.q.dtype, sinks=torch.zeros(w.s.shape[1])),
        MERGE + r"|\bsplits?\b|\bempty|denominator|\bsink|\bpad",
    ),
    # A ring of devices merges split after split and leaves the log-sum-exp as it was.
    "the merge compares each split with the first one alone": (_merged_with_first, MERGE),
}

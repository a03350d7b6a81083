"""The order in which a library adds the numbers of ranks: a probe of it, and sums in that order."""

import itertools

import torch
import torch.distributed as dist

from labkernels.distributed.ranks import Ranks

_LARGE = {torch.float32: 2.0**40, torch.bfloat16: 2.0**40, torch.float16: 2.0**15}  # hide 15 ones


def order_of_sums(ranks: Ranks, like: torch.Tensor) -> torch.Tensor:
    """Return, for each of the sums of an all-reduce, which ranks have been added where two meet.

    A rank gives a large number, another its negative, and all others ones. Ones that are added to
    either before the two meet are lost, and the sum counts those that come after. This tells the
    tree of each sum, since pairs that meet deeper have fewer ranks below them; the order may change
    with the place, and with length, format and device of `like`, whose numbers do not count.
    Shapes: like [numbers]; the result [numbers, ranks, ranks] int32, how many ranks the smallest
    partial sum with both has, on the device of `like`.
    Raises: ValueError naming the format and what is allowed; LostRank.

    >>> order_of_sums(Ranks(), torch.zeros(2)).tolist()
    [[[1]], [[1]]]
    """
    if like.dtype not in _LARGE:
        raise ValueError(f"like.dtype = {like.dtype}, allowed: {', '.join(map(str, _LARGE))}")
    large = _LARGE[like.dtype]
    met = like.new_ones(len(like), ranks.size, ranks.size, dtype=torch.int32)
    for i, j in itertools.combinations(range(ranks.size), 2):
        total = torch.full_like(like, {i: large, j: -large}.get(ranks.rank, 1.0))
        ranks.ask("a probe of sums", dist.all_reduce, total, group=ranks.group)
        met[:, i, j] = met[:, j, i] = ranks.size - total.int()
    return met


def sums_in_order(parts: torch.Tensor, met: torch.Tensor) -> torch.Tensor:
    """Add the parts of ranks as a probe saw it, each sum rounded to the format of the parts.

    Shapes: parts [ranks, numbers]; met as `order_of_sums` returns it.
    Raises: ValueError where this is no order, as of 16-bit numbers that are added in fp32.

    >>> met = torch.tensor([[[1, 3, 3], [3, 1, 2], [3, 2, 1]]])  # ranks 1 and 2 meet first
    >>> sums_in_order(torch.tensor([[-(2.0**30)], [2.0**30], [1.0]]), met)
    tensor([0.])
    """
    trees, total = met.flatten(1), torch.empty_like(parts[0])
    changes = (trees[1:] != trees[:-1]).any(1).nonzero().flatten() + 1
    for start, end in itertools.pairwise([0, *changes.tolist(), len(trees)]):
        total[start:end] = _added(parts[:, start:end], met[start].tolist(), [*range(len(parts))])
    return total


def _added(parts: torch.Tensor, tree: list[list[int]], below: list[int]) -> torch.Tensor:
    """Return the partial sum of the ranks below a node: of those near the first, and the rest."""
    first, *others = below
    if not others:
        return parts[first]
    near = [first, *(rank for rank in others if tree[first][rank] < len(below))]
    rest = [rank for rank in below if rank not in near]
    if not rest:
        raise ValueError(f"met = {tree} between the ranks {below}, allowed: a tree of sums")
    return _added(parts, tree, near) + _added(parts, tree, rest)

"""The shapes of a batch, the cut that a library makes of them, and how two cuts compare."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from labkernels.numerics.emulation.running_max import KeyOrder
from labkernels.units import require_choice, require_int

Splits = tuple[tuple[int, int], ...]
DTYPES = ("fp16", "bf16")


class NotKnown(ValueError):
    """Raised where a library's rule does not stand in a source that was read."""


@dataclass(frozen=True)
class Batch:
    """The shapes of one call.

    q_lens: query tokens per request; () for a decode, which has one. page_size: keys per page; None
    for keys in contiguous rows. head_dim: of MLA, latent and rope together, with kv_heads = 1.
    Raises: ValueError naming the field, its value and what is allowed.
    """

    kv_lens: tuple[int, ...]
    q_heads: int
    kv_heads: int
    head_dim: int
    q_lens: tuple[int, ...] = ()
    page_size: int | None = None
    dtype: str = "bf16"
    causal: bool = False

    def __post_init__(self) -> None:
        require_choice("dtype", self.dtype, DTYPES)
        require_int("kv_heads", self.kv_heads, minimum=1)
        if not self.kv_lens:
            raise ValueError("kv_lens = (), allowed: one length per request, and one at least")
        if self.q_heads % self.kv_heads:
            raise ValueError(f"q_heads = {self.q_heads}, allowed: multiples of {self.kv_heads}")
        if self.q_lens and len(self.q_lens) != len(self.kv_lens):
            raise ValueError(f"q_lens = {self.q_lens}, allowed: {len(self.kv_lens)} lengths")

    @property
    def size(self) -> int:
        """The number of requests."""
        return len(self.kv_lens)

    @property
    def group(self) -> int:
        """Query heads per KV head."""
        return self.q_heads // self.kv_heads

    @property
    def queries(self) -> tuple[int, ...]:
        """Query tokens of each request."""
        return self.q_lens or (1,) * self.size

    def alone(self, request: int = 0) -> "Batch":
        """Return one request as a batch of its own."""
        queries = self.q_lens[request : request + 1]
        return replace(self, kv_lens=self.kv_lens[request : request + 1], q_lens=queries)


@dataclass(frozen=True)
class Cut:
    """How a library cuts a batch.

    kernel: the arithmetic, by its library. tile_q, tile_keys: rows and keys that a block takes at a
    time. splits: for each request the key ranges whose outputs are merged, for its last query.
    order, chains: as in numerics.emulation.running_max. p: the format of P, "" if it was not read.
    partials: the format in which outputs of several splits wait for their merge. "input" is the
    format of q, K and V.
    """

    kernel: str
    tile_q: int
    tile_keys: int
    splits: tuple[Splits, ...]
    order: KeyOrder = "descending"
    chains: int = 1
    p: str = "input"
    partials: str = "fp32"

    def arithmetic(self, request: int) -> tuple[Any, ...]:
        """Return all on which a request's bits depend, beside its inputs.

        The rows of a query tile do not: a row's bits do not depend on the other rows of its tile.
        """
        splits = self.splits[request]
        merged = self.partials if len(splits) > 1 else ""
        return (self.kernel, self.tile_keys, self.order, self.chains, self.p, merged, splits)

    def label(self, request: int = 0) -> str:
        """Return the tile and the splits of a request in words.

        >>> Cut("fa2", 16, 128, (((0, 512), (512, 700)),)).label()
        '16 x 128, 2 splits of 512'
        """
        splits = self.splits[request]
        cut = f", {len(splits)} splits of {splits[0][1]}" if len(splits) > 1 else ", no split"
        return f"{self.tile_q} x {self.tile_keys}{cut}"


def changed(cut: Cut, other: Cut, others: Sequence[int] = ()) -> tuple[int, ...]:
    """Return the requests that another batch cuts differently, so that their bits may change there.

    others: the number that each request of `cut` has in the other batch; () for the same numbers.

    >>> one, four = (((0, 512),),), (((0, 128), (128, 256), (256, 384), (384, 512)),)
    >>> changed(Cut("fa2", 16, 128, one * 2), Cut("fa2", 16, 128, one + four))
    (1,)
    """
    pairs = enumerate(others or range(min(len(cut.splits), len(other.splits))))
    return tuple(i for i, j in pairs if cut.arithmetic(i) != other.arithmetic(j))


def because(
    keys: int, cuts: Sequence[Cut], requests: tuple[int, int], sizes: tuple[int, int]
) -> str:
    """Return in words how two batches cut a request of so many keys, the larger batch first.

    requests: its number in each batch. sizes: of the batches.

    >>> cuts = [Cut("fa2", 16, 128, (even(512, size),)) for size in (128, 512)]
    >>> because(512, cuts, (0, 0), (1, 57))
    'with 57 requests its 512 keys are not split, alone cut into 4 splits of 128'
    """
    told = []
    for cut, i, size in sorted(zip(cuts, requests, sizes, strict=True), key=lambda x: -x[2]):
        n, step = len(cut.splits[i]), cut.splits[i][0][1]
        splits = f"cut into {n} splits of {step:,}" if n > 1 else "not split"
        where = f"with {size:,} requests" if size > 1 else "alone"
        told.append((where, splits, f"in tiles of {cut.tile_keys}", f"by {cut.kernel}"))
    (first, *words), (then, *others) = told
    word, other = next(((a, b) for a, b in zip(words, others, strict=True) if a != b), ("", ""))
    return f"{first} its {keys:,} keys are {word}, {then} {other}"


def even(n_keys: int, step: int | None = None) -> Splits:
    """Return a request's ranges of `step` keys, or one range of all its keys, even of none."""
    step = step or max(n_keys, 1)
    return tuple((i, min(i + step, n_keys)) for i in range(0, n_keys, step)) or ((0, 0),)


def ceil(n: int, step: int) -> int:
    """Return how many steps hold n."""
    return -(-n // step)


def one_length(lengths: Sequence[int], name: str) -> int:
    """Return the length that all requests have, or raise NotKnown."""
    if len(set(lengths)) != 1:
        raise NotKnown(f"{name} = {tuple(lengths)}: its cut of different lengths was not read")
    return lengths[0]


def even_blocks(n_keys: int, tile_keys: int, splits: int, planned: int | None = None) -> Splits:
    """Return the ranges of a request whose tiles are dealt to splits, without those that are empty.

    planned: the length of which the split's tiles are counted, by default the request's own.
    """
    tiles = ceil(ceil(n_keys if planned is None else planned, tile_keys), splits)
    return even(n_keys, max(tiles, 1) * tile_keys)

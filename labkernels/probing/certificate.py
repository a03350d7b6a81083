"""Does the batch change a request's bits? The same request is called in many ways, and compared.

The first request of each length is computed alone. Every other way to call has this request too:
again, in larger batches, last, beside a longer one, in other pages, in chunks. Equal inputs that
give other bits are counted by head. The tensors are made where the kernel runs, since the arrays
of `layouts`, in float64 on the host, would take minutes at the sizes of a server.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from labkernels.kernels.caches.latent import LATENT_DIM, ROPE_DIM
from labkernels.kernels.random_inputs import Normal, int32, scattered, sums
from labkernels.probing.layouts import (
    DECODE,
    DENSE,
    DTYPES,
    LAYOUTS,
    PAGED,
    Refused,
    answer_of,
    refusals,
)
from labkernels.units import require_choice

BATCHES = (2, 4, 8, 16, 32, 64)
AGAIN = 3  # repeats of the same call: a sum whose order changes seldom shows at once
BASE = "alone"


@dataclass(frozen=True)
class Way:
    """One way to call: the keys of each request in it, and where the compared request stands.

    chunk: query tokens per call, of a request that is computed piece by piece; None: all at once.
    pages: seed of the order of pages. spare: further columns of the page table.
    """

    words: str
    lengths: tuple[int, ...]
    place: int = 0
    page_size: int = 16
    pages: int = 1
    spare: int = 0
    chunk: int | None = None


@dataclass(frozen=True)
class Finding:
    """What a way to call did to the bits of a request of `keys` keys.

    heads: query heads with other bits, of all q_heads; None if the kernel refused, as `why` says.
    """

    keys: int
    words: str
    batch: int
    heads: int | None
    q_heads: int
    why: str = ""

    def __str__(self) -> str:
        if self.heads is None:
            return "refused"
        return "same" if self.heads == 0 else f"{self.heads} of {self.q_heads} heads"


@dataclass(frozen=True)
class Certificate:
    """The findings for one kernel. invariant: None if no way but the first could be called."""

    name: str
    layout: str
    dtype: str
    findings: list[Finding] = field(default_factory=list)

    @property
    def changed(self) -> list[Finding]:
        """The findings with other bits."""
        return [found for found in self.findings if found.heads]

    @property
    def invariant(self) -> bool | None:
        """Whether all ways to call gave the same bits."""
        judged = [found for found in self.findings if found.heads is not None]
        return not self.changed if judged else None

    @property
    def exit_code(self) -> int:
        """0: the same bits always; 1: other bits; 2: the kernel could not be called."""
        return 2 if self.invariant is None else int(not self.invariant)

    def __str__(self) -> str:
        keys = sorted({found.keys for found in self.findings})
        by_way: dict[str, dict[int, Finding]] = {}
        for found in self.findings:
            by_way.setdefault(found.words, {})[found.keys] = found
        head = ["", *(f"{n:,} keys" for n in keys)]
        body = [
            [words, *(str(row[n]) if n in row else "" for n in keys)]
            for words, row in by_way.items()
        ]
        table = [f"{a:<30}" + "".join(f"{cell:>18}" for cell in rest) for a, *rest in (head, *body)]
        refused = {f"refused: {found.why}" for found in self.findings if found.why}
        lines = [f"{self.name}, {self.layout}, {self.dtype}", *table, *sorted(refused)]
        return "\n".join([*lines, self._verdict()])

    def _verdict(self) -> str:
        if self.invariant is None:
            return "cannot judge: the kernel refused every call"
        if self.invariant:
            return "the bits of a request depend on the request alone, in all of these calls"
        if any(found.words == "again" for found in self.changed):
            return "the same call gives other bits when it runs again: it is nondeterministic"
        first = min(self.changed, key=lambda found: (found.keys, found.batch))
        where = f"first {first.words}, {first.keys:,} keys, {first}"
        return f"a request's bits depend on how it is called: {where}"


@dataclass(frozen=True)
class Sizes:
    """What all calls share. queries: tokens of each request; None: 1 in a decode, else 16."""

    q_heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    page_size: int = 16
    queries: int | None = None


def certify(
    function: Callable,
    layout: str,
    dtype: str = "bf16",
    *,
    lengths: Sequence[int] = (512, 2048, 8192),
    batches: Sequence[int] = BATCHES,
    sizes: Sizes | None = None,
    device: str = "cpu",
    causal: bool = False,
    options: Mapping[str, Any] | None = None,
    name: str = "",
    progress: Callable[[str], None] = lambda words: None,
) -> Certificate:
    """Compare the bits of a request in many calls of a function.

    function, layout and dtype are those of `probe`; options are passed on by keyword. With
    several query tokens (sizes.queries) and causal, which says that the function hides later keys
    (aligned to the end), the request is computed in chunks too.
    Raises: ValueError for a layout or a dtype that does not exist, or fewer keys than queries.

    >>> from labkernels.probing import targets
    >>> from labkernels.variant import FULL
    >>> decode = targets.find("decode_mma").function("paged_decode", FULL)
    >>> how = {"lengths": (80,), "batches": (2,), "sizes": Sizes(4, 2, 64)}
    >>> certify(decode, "paged_decode", options={"batch_invariant": True}, **how).invariant
    True
    """
    require_choice("layout", layout, LAYOUTS)
    require_choice("dtype", dtype, DTYPES)
    sizes = sizes or Sizes()
    queries = sizes.queries or (1 if layout in DECODE else 16)
    sizes = replace(sizes, queries=queries)
    if layout == "mla":
        sizes = replace(sizes, kv_heads=1, head_dim=LATENT_DIM + ROPE_DIM)
    if layout in DECODE and queries > 1:
        raise ValueError(f"queries = {queries}, allowed in {layout}: 1")
    if min(lengths) < queries:
        raise ValueError(f"lengths = {lengths}, allowed: {queries} or more, the queries")
    call = _Calls(function, layout, DTYPES[dtype], device, sizes, dict(options or {}))
    made = Certificate(name or getattr(function, "__name__", "kernel"), layout, dtype)
    for keys in lengths:
        base = None
        for way in _ways(layout, keys, batches, sizes, causal):
            progress(f"{keys} keys, {way.words}")
            try:
                bits = call(way)
            except Refused as why:
                found = Finding(keys, way.words, len(way.lengths), None, sizes.q_heads, str(why))
                made.findings.append(found)
                if base is None:
                    break
                continue
            if base is None:
                base = bits
                continue
            heads = int((bits != base).flatten(2).any(-1).any(0).sum())
            made.findings.append(Finding(keys, way.words, len(way.lengths), heads, sizes.q_heads))
    return made


def _ways(
    layout: str, keys: int, batches: Sequence[int], sizes: Sizes, causal: bool
) -> Iterator[Way]:
    """Yield the ways to call, the request alone first."""
    alone = Way(BASE, (keys,), page_size=sizes.page_size)
    yield alone
    for _ in range(AGAIN):
        yield replace(alone, words="again")
    for batch in batches:
        yield replace(alone, words=f"in a batch of {batch}", lengths=(keys,) * batch)
    yield replace(alone, words="last of 5", lengths=(keys,) * 5, place=4)
    if layout in DENSE:
        return
    yield replace(alone, words="beside one 4 times as long", lengths=(keys, 4 * keys))
    short = [sizes.queries + more for more in (0, 16, 32)]
    yield replace(alone, words="after short ones", lengths=(*short, keys), place=3)
    if layout in PAGED:
        yield replace(alone, words="in other pages", pages=7)
        yield replace(alone, words="in a wider page table", spare=3 * -(-keys // sizes.page_size))
        for page_size in (1, 64):
            yield replace(alone, words=f"in pages of {page_size}", page_size=page_size)
    if sizes.queries > 1 and causal:
        yield replace(alone, words="token by token", chunk=1)
        yield replace(alone, words="in chunks", chunk=max(1, math.ceil(0.6 * sizes.queries)))


class _Calls:
    """The function behind one face: a way to call in, the bits of the compared request out."""

    def __init__(self, function, layout, dtype, device, sizes: Sizes, options: dict) -> None:
        self.function, self.layout, self.dtype, self.device = function, layout, dtype, device
        self.sizes, self.options = sizes, options

    def __call__(self, way: Way) -> torch.Tensor:
        """Return the output's bits, int16 or int32 [queries, heads, channels]."""
        n = self.sizes.queries
        step = way.chunk or n
        pieces = []
        for first in range(0, n, step):
            end = min(first + step, n)
            lengths = [m - (n - end) for m in way.lengths]
            pieces.append(self._piece(way, slice(first, end), lengths))
        return torch.cat(pieces)

    def _piece(self, way: Way, tokens: slice, lengths: list[int]) -> torch.Tensor:
        """Call the function on some query tokens of each request, and the keys up to their last."""
        drawn = [self._request(m, i == way.place) for i, m in enumerate(way.lengths)]
        q = [x[0][tokens] for x in drawn]
        k, v = ([x[i][:m] for x, m in zip(drawn, lengths, strict=True)] for i in (1, 2))
        with refusals():
            out, _ = answer_of(self.function(*self._tensors(way, q, k, v), **self.options))
            out = self._of_request(out, way.place, len(way.lengths), len(q[0]))
        kind = torch.int32 if out.element_size() == 4 else torch.int16
        return out.contiguous().view(kind).cpu()

    def _of_request(self, out: torch.Tensor, place: int, batch: int, n: int) -> torch.Tensor:
        """Return the rows of the compared request, [n, heads, channels]."""
        heads = self.sizes.q_heads
        shapes = {"bhsd": (batch, heads, n), "bshd": (batch, n, heads)}
        shape = shapes.get(self.layout, (batch * n, heads))
        if out.ndim != len(shape) + 1 or tuple(out.shape[:-1]) != shape:
            raise Refused(f"the output has shape {tuple(out.shape)}, not {shape} and channels")
        if self.layout in DENSE:
            return out[place].swapaxes(0, 1) if self.layout == "bhsd" else out[place]
        return out[place * n : (place + 1) * n]

    def _request(self, keys: int, compared: bool) -> tuple[torch.Tensor, ...]:
        """Draw a request; the compared request of a length is the same in every call."""
        s = self.sizes
        draw = torch.Generator(self.device).manual_seed(keys * 2 + compared)

        def tensor(rows, heads):
            shape = (rows, heads, s.head_dim)
            return torch.randn(shape, generator=draw, device=self.device).to(self.dtype)

        q, k = tensor(s.queries, s.q_heads), tensor(keys, s.kv_heads)
        return q, k, k[..., :LATENT_DIM] if self.layout == "mla" else tensor(keys, s.kv_heads)

    def _tensors(self, way: Way, q: list, k: list, v: list) -> tuple[torch.Tensor, ...]:
        if self.layout in DENSE:
            stacked = (torch.stack(x) for x in (q, k, v))
            return tuple(x.swapaxes(1, 2) if self.layout == "bhsd" else x for x in stacked)
        draw = Normal(way.pages, self.device)
        rows, lengths = torch.cat(q), [len(x) for x in k]
        ends = sums([len(x) for x in q], draw)
        if self.layout == "ragged":
            return rows, torch.cat(k), torch.cat(v), ends, sums(lengths, draw)
        table = scattered(lengths, way.page_size, draw)
        pools = [_pool(x, table, way.page_size) for x in (k, v)]
        table = torch.nn.functional.pad(table, (0, way.spare))
        where = (table, int32(lengths, draw))
        if self.layout == "mla":
            parts = [x.split([LATENT_DIM, ROPE_DIM], -1) for x in (rows, pools[0][:, :, 0])]
            return *(x.contiguous() for pair in parts for x in pair), *where
        return rows, *pools, *where, *((ends,) if self.layout == "paged_prefill" else ())


def _pool(of: list[torch.Tensor], table: torch.Tensor, size: int) -> torch.Tensor:
    """Return the pages [pages, size, heads, channels] of requests, where the table says."""
    padded = [torch.nn.functional.pad(x, (0, 0, 0, 0, 0, -len(x) % size)) for x in of]
    counts = torch.tensor([len(x) // size for x in padded], device=table.device)
    used = torch.arange(table.shape[1], device=table.device) < counts[:, None]
    pages = torch.cat(padded).unflatten(0, (-1, size))
    pool = torch.empty_like(pages)
    pool[table[used].long()] = pages
    return pool

"""Random paged caches in which everything that no request owns is NaN, and poisoned outputs."""

import functools
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import ClassVar

import torch

from labkernels import ops
from labkernels.kernels.caches.latent import LatentKV
from labkernels.kernels.caches.paged import PagedKV, QuantizedKV
from labkernels.kernels.random_inputs import variant_tensors
from labkernels.numerics.truth.problem import Problem

DTYPES = {
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp32": torch.float32,
    "fp64": torch.float64,
}
KV_DTYPES = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
SCALES = ("tensor", "heads", "pages", "blocks", "tokens")  # what a scale of a cache belongs to
LAYOUTS = ("nhd", "hnd", "padded", "joint")
SPARE_PAGES = 5
PAD = 8  # elements: a row may start only at a multiple of 16 bytes
WILD_PAGE = 2**31 - 1  # in slots past the length, which no kernel may follow
EDGE = 3  # tokens of NaN before the first token and after the last
GUARD_ROWS = 2


class Remembers:
    """Keeps in `known` what tests have computed about a case, which they share and never change."""

    def changed(self, **fields):
        """Return the case with other fields, about which nothing is known."""
        return replace(self, known={}, **fields)

    def once(self, name, compute):
        """Return what `compute` gives, computed when it is first asked for."""
        if name not in self.known:
            self.known[name] = compute()
        return self.known[name]


class Forward(Remembers):
    """A case of a verb that computes attention: its arguments, and the selection of requests."""

    verb: ClassVar[str]
    queries: ClassVar[tuple[str, ...]] = ("q",)
    kv_field: ClassVar[str] = "kv"
    variant: Mapping[str, object] = MappingProxyType({})

    @property
    def head_dim_v(self) -> int:
        """Return the channels of the output."""
        return self.kv.head_dim_v

    @property
    def how(self) -> dict:
        """Return the options that belong to the problem."""
        return {"scale": self.scale, "causal": self.causal, **self.variant}

    @property
    def arguments(self) -> tuple:
        """Return the arguments of the verb, in order."""
        queries = [getattr(self, name) for name in self.queries]
        return (*queries, self.kv, self.cu_seqlens_q)

    def run(self, kernel=None, **options) -> ops.Step:
        """Call the verb at the case's scale and mask, unless others are given."""
        return getattr(ops, self.verb)(*self.arguments, kernel=kernel, **{**self.how, **options})

    def step(self, kernel=None, **options) -> ops.Step:
        """Prepare the verb's step, as `run` runs it."""
        prepare = getattr(ops, f"{self.verb}_step")
        return prepare(*self.arguments, kernel=kernel, **{**self.how, **options})

    def problem(self) -> Problem:
        """Return the problem that labkernels.numerics takes, with all numbers as float64."""
        return self.once("problem", self._problem)

    def with_kv(self, **fields):
        """Return the case with other tensors of K and V; without fields, with a table of its own.

        The table and the lengths are then copies, which a test may change.
        """
        if not fields:
            fields = {name: getattr(self.kv, name).clone() for name in ("page_table", "kv_len")}
        return self.changed(**{self.kv_field: replace(self.kv, **fields)})

    def with_scores(self, factor: float):
        """Return the case with a factor on its queries, and so on its scores."""
        return self.changed(**{name: getattr(self, name) * factor for name in self.queries})

    def rows(self, requests) -> torch.Tensor:
        """Return the rows of the query that requests have."""
        return span(self.cu_seqlens_q, requests)

    def chosen(self, requests):
        """Return the case of some requests, in the order in which they are given."""
        fields = {name: getattr(self, name)[self.rows(requests)] for name in self.queries}
        kv = self.kv
        if kv.layout == "paged":
            kv = replace(kv, page_table=kv.page_table[requests], kv_len=kv.kv_len[requests])
        else:
            keys = span(kv.cu_seqlens, requests)
            kv = replace(
                kv, k=kv.k[keys], v=kv.v[keys], cu_seqlens=ends_of(kv.cu_seqlens, requests)
            )
        if self.cu_seqlens_q is not None:
            fields["cu_seqlens_q"] = ends_of(self.cu_seqlens_q, requests)
        return self.changed(**fields, **{self.kv_field: kv})


def span(ends, requests) -> torch.Tensor:
    """Return the rows of requests, given where each request ends; one row each without ends."""
    if ends is None:
        return torch.tensor(requests)
    return torch.cat([torch.arange(*ends[i : i + 2].tolist()) for i in requests])


def ends_of(ends, requests) -> torch.Tensor:
    """Return the cumulative lengths of some requests."""
    return sums(ends.diff()[requests].tolist(), ends.device)


@dataclass(frozen=True, eq=False)
class Case(Forward):
    """A decode problem. `storage` holds the whole buffers that q, K and V are views of."""

    q: torch.Tensor
    cache: PagedKV | QuantizedKV
    scale: float
    storage: tuple[torch.Tensor, ...]
    known: dict = field(default_factory=dict)
    variant: Mapping[str, object] = field(default_factory=dict)
    verb, kv_field, cu_seqlens_q = "decode", "cache", None

    @property
    def kv(self) -> PagedKV:
        """Return the cache, by the name that it has in other operations."""
        return self.cache

    @property
    def arguments(self) -> tuple:
        """Return the arguments of ops.decode."""
        return self.q, self.cache

    @property
    def how(self) -> dict:
        """Return the options that belong to the problem."""
        return {"scale": self.scale, **self.variant}

    def _problem(self):
        cache = self.cache
        wide = map(exact, (self.q, *cache.values()))
        table, lengths = cache.page_table.cpu().numpy(), cache.kv_len.cpu().numpy()
        variant = variant_tensors(self.variant)
        # the query is the last key
        return Problem(*wide, table, lengths, self.scale, causal=True, variant=variant)


@dataclass(frozen=True, eq=False)
class Outputs:
    """Poisoned out and lse2, each between guard rows that must stay as they are."""

    out: torch.Tensor
    lse2: torch.Tensor
    storage: tuple[torch.Tensor, ...]

    def check_guards(self) -> None:
        for whole in self.storage:
            edges = torch.cat([whole[:GUARD_ROWS], whole[-GUARD_ROWS:]])
            assert edges.isnan().all(), "something was written beside the outputs"


@functools.lru_cache(maxsize=16)
def decode_case(
    kv_lens,
    *,
    group=4,
    kv_heads=2,
    head_dim=64,
    page_size=16,
    dtype="fp16",
    layout="nhd",
    seed=0,
    device="cpu",
) -> Case:
    """Return standard normal q, K and V, whose values do not depend on page_size and layout.

    layout: "nhd" [page, token, head, dim], "hnd" the same seen through [page, head, token, dim],
    "padded" with gaps everywhere, "joint" K and V of a page side by side in one buffer.
    """
    generator = torch.Generator().manual_seed(seed)
    q_heads, kind = group * kv_heads, DTYPES[dtype]
    q = torch.randn(len(kv_lens), q_heads, head_dim, generator=generator).to(kind)
    keys = [torch.randn(2, n, kv_heads, head_dim, generator=generator) for n in kv_lens]
    k, v = torch.cat(keys, dim=1).to(kind)
    wide_q, q = padded(q)
    (q,), wide_q = moved([q], [wide_q], device)
    cache, storage = in_pages(PagedKV, k, v, kv_lens, page_size, layout, generator, device)
    return Case(q, cache, 1 / math.sqrt(head_dim), (*wide_q, *storage))


def narrowed(case: Case, kind: str, seed: int = 0, of: str = "heads", *, powers=False) -> Case:
    """Return the case with its keys and values as codes, and random scales, of SCALES.

    powers: the scales are small powers of two, so that 16 bits hold the numbers.
    """
    cache, generator = case.cache, torch.Generator().manual_seed(seed)
    k, v = (x.to(KV_DTYPES[kind]) for x in (cache.k, cache.v))
    n, heads = cache.page_size, cache.kv_heads
    parts = next(parts for parts in (4, 3, 2, 5, 1) if n % parts == 0)
    shapes = ((), (heads,), (len(k), 1, 1), (len(k), parts, heads), (len(k), n, heads))
    drawn = torch.randn(2, *dict(zip(SCALES, shapes, strict=True))[of], generator=generator)
    scales = torch.exp2(drawn.round() if powers else 2 * drawn).to(k.device)
    cache = QuantizedKV(k, v, cache.page_table, cache.kv_len, *scales)
    return case.changed(cache=cache, storage=(*case.storage, k, v))


def in_pages(kind, k, v, kv_lens, page_size, layout, generator, device):
    """Return a cache that holds the keys [total, heads, dim] of requests, and all its buffers."""
    n_pages = [-(-n // page_size) for n in kv_lens]
    order = torch.randperm(sum(n_pages) + SPARE_PAGES, generator=generator)
    shape = (len(order), page_size, *k.shape[1:])
    *both, storage = pools(shape, k.dtype, layout, v.shape[2])
    table = torch.full((len(kv_lens), max(n_pages, default=0) + 3), WILD_PAGE, dtype=torch.int32)
    taken = first = 0
    for i, (pages, length) in enumerate(zip(n_pages, kv_lens, strict=True)):
        table[i, :pages] = order[taken : taken + pages]
        key = torch.arange(length)
        place = table[i, key // page_size].long(), key % page_size
        for pool, rows in zip(both, (k, v), strict=True):
            pool[place] = rows[first : first + length]
        taken, first = taken + pages, first + length
    both, storage = moved(both, storage, device)
    lengths = torch.tensor(kv_lens, dtype=torch.int32, device=device)
    table = table.to(device)
    if kind is LatentKV:
        both = [pool[:, :, 0] for pool in both]  # latent rows have no heads
    # the table's rows, too, have a gap after them
    cache = kind(*both, table[:, : max(1, table.shape[1] - 2)], lengths)
    return cache, (*storage, table, lengths)


def sums(lengths, device="cpu") -> torch.Tensor:
    """Return cumulative lengths as the verbs take them."""
    return torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32, device=device)


def padded(tensor):
    """Return a buffer of NaN that is larger than the tensor, and a view of the values in it."""
    tokens, heads, dim = tensor.shape
    wide = torch.full((tokens + 2 * EDGE, heads + 1, dim + PAD), math.nan, dtype=tensor.dtype)
    inner = wide[EDGE : EDGE + tokens, :heads, :dim]
    inner.copy_(tensor)
    return wide, inner


def poisoned(case, *, dtype=None) -> Outputs:
    """Return outputs with NaN everywhere; out has the input's dtype or another."""
    batch, q_heads, _ = case.q.shape
    options = {"device": case.q.device}
    kind = case.q.dtype if dtype is None else DTYPES[dtype]
    rows = batch + 2 * GUARD_ROWS
    out = torch.full((rows, q_heads, case.head_dim_v), math.nan, dtype=kind, **options)
    lse2 = torch.full((rows, q_heads), math.nan, **options)
    inner = slice(GUARD_ROWS, -GUARD_ROWS)
    return Outputs(out[inner], lse2[inner], (out, lse2))


def exact(tensor: torch.Tensor):
    """Return the tensor's numbers in float64: on its GPU, or as a NumPy array."""
    return tensor.double() if tensor.is_cuda else tensor.double().numpy()


def assert_same(left, right, rows=slice(None)) -> None:
    """Assert that two results have the same bits; of the right one, only some rows count."""
    assert torch.equal(bits(left.out), bits(right.out[rows]))
    assert torch.equal(bits(left.lse2), bits(right.lse2[rows]))


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor as integers, so that a comparison sees NaN and the sign of zero."""
    integers = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.contiguous().view(integers[tensor.element_size()])


def pools(shape, kind, layout, head_dim_v=None):
    """Return K and V, all NaN, and their buffers; strides are equal if the head_dims are."""
    pages, tokens, heads, dim = shape
    dims = (dim, head_dim_v or dim)
    if layout == "joint":
        both = torch.full((pages, 2, tokens, heads, max(dims)), math.nan, dtype=kind)
        return both[:, 0, ..., : dims[0]], both[:, 1, ..., : dims[1]], [both]
    if layout == "hnd":
        whole = [torch.full((pages, heads, tokens, d), math.nan, dtype=kind) for d in dims]
        return *(x.permute(0, 2, 1, 3) for x in whole), whole
    gap = 0 if layout == "nhd" else 1
    wide = (pages + gap, tokens + gap, heads + gap)
    whole = [torch.full((*wide, d + gap * PAD), math.nan, dtype=kind) for d in dims]
    k, v = (x[:pages, :tokens, :heads, :d] for x, d in zip(whole, dims, strict=True))
    return k, v, whole


def moved(views, storage, device):
    """Return views and their buffers, moved to another device, with the same strides."""
    return (views, storage) if device == "cpu" else copied(views, storage, device)


def copied(views, storage, device):
    """Return copies of views and of their buffers on a device, with the same strides."""
    homes = [x.to(device, copy=True) for x in storage]
    found = {x.untyped_storage().data_ptr(): y for x, y in zip(storage, homes, strict=True)}
    there = [
        found[x.untyped_storage().data_ptr()].as_strided(x.shape, x.stride(), x.storage_offset())
        for x in views
    ]
    return there, homes

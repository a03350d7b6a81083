"""Random paged caches in which everything that no request owns is NaN, and poisoned outputs."""

import functools
import math
from dataclasses import dataclass, field, replace

import torch

from labkernels import ops
from labkernels.kernels.caches.paged import PagedKV
from labkernels.numerics.truth.problem import Problem

DTYPES = {
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp32": torch.float32,
    "fp64": torch.float64,
}
LAYOUTS = ("nhd", "hnd", "padded", "joint")
SPARE_PAGES = 5
PAD = 8  # elements: a row may start only at a multiple of 16 bytes
WILD_PAGE = 2**31 - 1  # in slots past the length, which no kernel may follow
GUARD_ROWS = 2


class Remembers:
    """Keeps in `known` what tests have computed about a case, which they share and never change."""

    def changed(self, **fields):
        """Return the case with other fields, about which nothing is known."""
        return replace(self, known={}, **fields)

    def problem(self) -> Problem:
        """Return the problem that labkernels.numerics takes, with all numbers as float64."""
        return self.once("problem", self._problem)

    def once(self, name, compute):
        """Return what `compute` gives, computed when it is first asked for."""
        if name not in self.known:
            self.known[name] = compute()
        return self.known[name]


@dataclass(frozen=True, eq=False)
class Case(Remembers):
    """A decode problem. `storage` holds the whole buffers that q, K and V are views of."""

    q: torch.Tensor
    cache: PagedKV
    scale: float
    storage: tuple[torch.Tensor, ...]
    known: dict = field(default_factory=dict)

    @property
    def head_dim_v(self) -> int:
        """Return the channels of the output."""
        return self.cache.head_dim_v

    def run(self, kernel, **options) -> ops.Step:
        """Decode at the case's scale, unless another is given."""
        return ops.decode(self.q, self.cache, kernel=kernel, **{"scale": self.scale, **options})

    def _problem(self):
        cache = self.cache
        wide = map(exact, (self.q, cache.k, cache.v))
        table, lengths = cache.page_table.cpu().numpy(), cache.kv_len.cpu().numpy()
        return Problem(*wide, table, lengths, self.scale)


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
    queries = torch.randn(len(kv_lens), q_heads, head_dim, generator=generator)
    keys = [torch.randn(2, n, kv_heads, head_dim, generator=generator) for n in kv_lens]
    n_pages = [-(-n // page_size) for n in kv_lens]
    order = torch.randperm(sum(n_pages) + SPARE_PAGES, generator=generator)
    k, v, storage = pools((len(order), page_size, kv_heads, head_dim), kind, layout)
    table = torch.full((len(kv_lens), max(n_pages, default=0) + 3), WILD_PAGE, dtype=torch.int32)
    taken = 0
    for i, (pages, both) in enumerate(zip(n_pages, keys, strict=True)):
        table[i, :pages] = order[taken : taken + pages]
        taken += pages
        key = torch.arange(both.shape[1])
        page, token = table[i, key // page_size].long(), key % page_size
        k[page, token], v[page, token] = both.to(kind)
    wide_q = torch.full((len(kv_lens), q_heads + 1, head_dim + PAD), math.nan, dtype=kind)
    wide_q[:, :q_heads, :head_dim] = queries.to(kind)
    (k, v), storage = moved([k, v], storage, device)
    wide_q, table = wide_q.to(device), table.to(device)
    lengths = torch.tensor(kv_lens, dtype=torch.int32, device=device)
    # the table's rows, too, have a gap after them
    cache = PagedKV(k, v, table[:, : max(1, table.shape[1] - 2)], lengths)
    q = wide_q[:, :q_heads, :head_dim]
    return Case(q, cache, 1 / math.sqrt(head_dim), (wide_q, *storage, table, lengths))


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


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor as integers, so that a comparison sees NaN and the sign of zero."""
    integers = {2: torch.int16, 4: torch.int32, 8: torch.int64}
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
    if device == "cpu":
        return views, storage
    homes = [x.to(device) for x in storage]
    found = {x.untyped_storage().data_ptr(): y for x, y in zip(storage, homes, strict=True)}
    there = [
        found[x.untyped_storage().data_ptr()].as_strided(x.shape, x.stride(), x.storage_offset())
        for x in views
    ]
    return there, homes

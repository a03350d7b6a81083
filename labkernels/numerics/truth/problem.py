"""An attention problem: which query sees which keys, checked once and read in float64 blocks.

Arrays are NumPy's, or torch's on any device: the functions of numerics that take a Problem work in
the namespace that its q belongs to, and give arrays of that namespace.
"""

import functools
import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from labkernels.kept import Kept
from labkernels.numerics.arrays import Array, moved, namespace, to_numpy
from labkernels.numerics.truth import layouts
from labkernels.numerics.truth.rows import Rows
from labkernels.numerics.truth.variant import VariantTensors
from labkernels.variant import AttentionVariant

# Keys and scores per block: few enough for a core's own cache, where a block has one KV head unless
# heads are small; and enough to keep a GPU busy, where it has all heads. The scores of one token
# may be more. A problem with at most KEPT_SCORES scores keeps them. Of a larger one, rows keep up
# to HELD_SCORES while they are worked on: a core's memory is reused then, which takes less time
# than to ask the system for more.
BLOCK_KEYS = {"cpu": 256, "gpu": 1024}
BLOCK_SCORES = {"cpu": 2**15, "gpu": 2**25}
KEPT_SCORES = {"cpu": 2**23, "gpu": 2**29}
HELD_SCORES = 2**22
_KEPT_OF_KEYS = 128  # kinds of blocks of keys, about as many as 2,048 keys of three heads have
_FEW_ROWS, _KEYS_OF_FEW_ROWS = 32, 4


@dataclass(frozen=True, eq=False)
class Problem:
    """Queries of some requests, and where the keys of each request lie in a paged pool.

    Shapes: q [total_q, Hq, D]; pools [pages, page_size, Hkv, D or Dv]; page_table [B, max_pages];
    kv_lens [B]; cu_seqlens_q [B + 1], ends of the requests' queries; None: one query per request.
    causal: query i of n, in a request of L keys, sees the keys 0 to L - n + i. variant: the other
    changes of the scores. places [total_q]: of the queries among the keys, where query i of n does
    not have the place L - n + i.
    Raises: ValueError, naming the argument, where shapes disagree or a number is out of range.
    """

    q: np.ndarray
    k_pool: np.ndarray
    v_pool: np.ndarray
    page_table: np.ndarray
    kv_lens: np.ndarray
    scale: float
    cu_seqlens_q: np.ndarray | None = None
    causal: bool = False
    variant: VariantTensors | None = None
    places: np.ndarray | None = None

    def __post_init__(self) -> None:
        for name in ("page_table", "kv_lens", "cu_seqlens_q"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, layouts.integers(name, getattr(self, name)))
        _check_shapes(self)
        _check_numbers(self)
        if self.variant is not None:
            self.variant.check(self.q.shape[0], self.q.shape[1], int(self.kv_lens.max(initial=0)))

    @classmethod
    def packed(
        cls, q: Array, k: Array, v: Array, cu_seqlens_k: Array | list[int], **how: Any
    ) -> "Problem":
        """Return the problem of k, v [total_k, Hkv, D] whose requests end at cu_seqlens_k."""
        return cls(q, *layouts.of_packed(k, v, cu_seqlens_k), **how)

    @classmethod
    def dense(
        cls, q: Array, k: Array, v: Array, *, kv_lens: list[int] | None = None, **how: Any
    ) -> "Problem":
        """Return the problem of q [B, Hq, M, D] and k, v [B, Hkv, L, D], cut to kv_lens [B]."""
        if q.ndim != 4:
            raise ValueError(f"q.shape = {tuple(q.shape)}, allowed: [B, Hq, M, D]")
        ends = np.arange(len(q) + 1) * q.shape[2]
        pools = layouts.of_dense(k, v, kv_lens)
        return cls(layouts.tokens(q), *pools, **{"cu_seqlens_q": ends, **how})

    def in_numpy(self) -> "Problem":
        """Return the problem in NumPy, from any device; from torch, in float64."""
        if all(namespace(x) is np for x in (self.q, self.k_pool, self.v_pool)):
            return self
        q, k, v = (to_numpy(x).astype(np.float64) for x in (self.q, self.k_pool, self.v_pool))
        return replace(self, q=q, k_pool=k, v_pool=v)

    def on_cpu_in_numpy(self) -> "Problem":
        """Return the problem with NumPy's arrays in place of torch's tensors on the CPU.

        NumPy takes less time for a block that fits a core's cache. Keys and values of 16 bits,
        which NumPy would hold in twice the memory, stay torch's until a block of them is read.
        """
        if namespace(self.q) is np or self.machine != "cpu":
            return self
        k, v = (x if x.itemsize < 4 else to_numpy(x) for x in (self.k_pool, self.v_pool))
        return replace(self, q=self.q_here, k_pool=k, v_pool=v)

    @property
    def batch(self) -> int:
        """Number of requests."""
        return len(self.kv_lens)

    @property
    def kv_heads(self) -> int:
        """Heads of K and V."""
        return self.k_pool.shape[2]

    @property
    def group(self) -> int:
        """Query heads that share a KV head."""
        return self.q.shape[1] // self.kv_heads

    @property
    def out_shape(self) -> tuple[int, int, int]:
        """Shape of the output, [total_q, Hq, Dv]."""
        return (*self.q.shape[:2], self.v_pool.shape[-1])

    @functools.cached_property
    def q_ends(self) -> np.ndarray:
        """Where the queries of each request begin, and the end of the last. Shapes: [B + 1]."""
        return np.arange(self.batch + 1) if self.cu_seqlens_q is None else self.cu_seqlens_q

    @functools.cached_property
    def q_here(self) -> np.ndarray:
        """The queries in NumPy, moved once; floats of 16 bits as float32. Shapes: as q."""
        return to_numpy(self.q)

    @functools.cached_property
    def request_of(self) -> np.ndarray:
        """The request of each query token. Shapes: [total_q]."""
        return np.repeat(np.arange(self.batch), np.diff(self.q_ends))

    @functools.cached_property
    def n_keys(self) -> np.ndarray:
        """How many keys each query token sees, with those a variant hides. Shapes: [total_q]."""
        kv_lens = self.kv_lens[self.request_of]
        right = None if self.variant is None else self.variant.window_right
        seen = AttentionVariant(self.causal, window_right=right)
        return seen.end(self.places_here, kv_lens, kv_lens)

    @functools.cached_property
    def places_here(self) -> np.ndarray:
        """The place of each query token among the keys of its request. Shapes: [total_q]."""
        if self.places is not None:
            return self.places
        request = self.request_of
        return np.arange(len(request)) + (self.kv_lens - self.q_ends[1:])[request]

    def row_name(self, token: int, head: int) -> str:
        """Return a row in words: its sample, its query where a sample has several, its head."""
        sample = int(self.request_of[token])
        first, last = (int(end) for end in self.q_ends[sample : sample + 2])
        query = f", query {token - first}" if last - first > 1 else ""
        return f"sample {sample}{query}, head {head}"

    def zeros(self, *shape: int) -> Array:
        """Return zeros in float64, where q lies."""
        return namespace(self.q).zeros(shape, dtype=namespace(self.q).float64, device=self.q.device)

    @property
    def machine(self) -> str:
        """Where q lies, "cpu" or "gpu"."""
        return "cpu" if str(self.q.device) == "cpu" else "gpu"

    def row_blocks(self) -> tuple[Rows, ...]:
        """Return blocks of tokens and KV heads of one request in which a row sees a key.

        They are always the same.
        """
        return self._row_blocks

    @functools.cached_property
    def _row_blocks(self) -> tuple[Rows, ...]:
        found = []
        for b in range(self.batch):
            begin, end = int(self.q_ends[b]), int(self.q_ends[b + 1])
            tokens, heads, keys = self._block_shape(end - begin, int(self.kv_lens[b]))
            for head in range(0, self.kv_heads, heads):
                for first in range(begin, end, tokens):
                    last = min(first + tokens, end)
                    if self.n_keys[first:last].any():
                        of_heads = head, min(head + heads, self.kv_heads)
                        found.append(Rows(self, b, first, last, *of_heads, keys))
        return tuple(found)

    @functools.cached_property
    def of_keys(self) -> Kept:
        """What was made of keys lately, since the next block of rows often needs it again."""
        return Kept(_KEPT_OF_KEYS)

    @functools.cached_property
    def n_scores(self) -> int:
        """Number of scores: of each query head, all keys that its queries see."""
        return int(self.n_keys.sum()) * self.q.shape[1]

    @functools.cached_property
    def keeps_scores(self) -> bool:
        """Whether scores, once computed, are kept."""
        return self.n_scores <= KEPT_SCORES[self.machine]

    def _block_shape(self, queries: int, kv_len: int) -> tuple[int, int, int]:
        """Return how many tokens, KV heads and keys a block of a request has, keys in pages.

        A few rows, as of a decode, take more keys at once: functions take longer to call than to
        run there.
        """
        size, keys = self.k_pool.shape[1], BLOCK_KEYS[self.machine]
        vectors = BLOCK_SCORES[self.machine] // min(keys, max(1, kv_len))
        least = 1 if self.machine == "cpu" else self.kv_heads
        tokens = max(1, vectors // (self.group * least))
        rows = min(tokens, queries) * self.group
        heads = max(least, vectors // max(rows, self.q.shape[-1]))
        if self.machine == "cpu" and rows <= _FEW_ROWS:
            keys *= _KEYS_OF_FEW_ROWS
        return tokens, min(heads, self.kv_heads), max(1, keys // size) * size


def keys_of(problem: Problem, which: str, head: int, request: int) -> np.ndarray:
    """Return K or V ("k", "v") of a head of a request, in float64. Shapes: [L, D]."""
    pool = problem.k_pool if which == "k" else problem.v_pool
    length, size = int(problem.kv_lens[request]), pool.shape[1]
    pages = problem.page_table[request][: -(-length // size)]
    found = to_numpy(pool[:, :, head][moved(pages, pool)]).astype(np.float64)
    return found.reshape(-1, pool.shape[-1])[:length]


def _check_shapes(p: Problem) -> None:
    """Raise unless the tensors agree in their dimensions."""
    arrays = {"q": 3, "k_pool": 4, "v_pool": 4, "page_table": 2, "kv_lens": 1, "cu_seqlens_q": 1}
    for name, ndim in arrays.items():
        array = getattr(p, name)
        if array is not None and array.ndim != ndim:
            raise ValueError(f"{name}.ndim = {array.ndim}, allowed: {ndim}")
    if p.k_pool.shape[:3] != p.v_pool.shape[:3]:
        allowed = f"{tuple(p.k_pool.shape[:3])} and any Dv"
        raise ValueError(f"v_pool.shape = {tuple(p.v_pool.shape)}, allowed: {allowed}")
    q_heads, head_dim = p.q.shape[1:]
    if head_dim == 0 or p.v_pool.shape[3] == 0:
        found = f"{head_dim}, {p.v_pool.shape[3]}"
        raise ValueError(f"head_dim of q, of v = {found}, allowed: 1 or more")
    if p.k_pool.shape[3] != head_dim:
        raise ValueError(f"k_pool head_dim = {p.k_pool.shape[3]}, allowed: that of q, {head_dim}")
    if p.kv_heads == 0 or q_heads % p.kv_heads:
        raise ValueError(f"q heads = {q_heads}, allowed: multiples of {p.kv_heads} KV heads")
    batch = len(p.q) if p.cu_seqlens_q is None else len(p.cu_seqlens_q) - 1
    if len(p.page_table) != batch or len(p.kv_lens) != batch:
        found = f"{len(p.page_table)}, {len(p.kv_lens)}"
        raise ValueError(f"rows of page_table, kv_lens = {found}, allowed: {batch}")


def _check_numbers(p: Problem) -> None:
    """Raise unless scale, ends of requests, lengths and pages are in their ranges."""
    if not math.isfinite(p.scale):
        raise ValueError(f"scale = {p.scale}, allowed: a finite number")
    if p.cu_seqlens_q is not None:
        layouts.check_ends("cu_seqlens_q", p.cu_seqlens_q, len(p.q), exact=True)
    n_pages, page_size = p.k_pool.shape[:2]
    capacity = p.page_table.shape[1] * page_size
    for b, (pages, kv_len) in enumerate(zip(p.page_table, p.kv_lens.tolist(), strict=True)):
        if not 0 <= kv_len <= capacity:
            raise ValueError(f"kv_lens[{b}] = {kv_len}, allowed: 0 to {capacity}")
        owned = pages[: -(-kv_len // page_size)] if kv_len else pages[:0]
        if owned.size and not (owned.min() >= 0 and owned.max() < n_pages):
            raise ValueError(f"page_table[{b}] = {owned}, allowed: 0 to {n_pages - 1}")

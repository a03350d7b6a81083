"""Two compute paths to one attention of 16 samples: a whole prefill, and a cache that grows.

The inputs have the same bits on every machine, and so have our kernels' outputs.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from labkernels import ops
from labkernels.chapters import live
from labkernels.kernels.caches.paged import PagedKV
from labkernels.kernels.caches.ragged import RaggedKV
from labkernels.kernels.decode.inputs import DecodeInputs
from labkernels.kernels.decode.workload import Decode
from labkernels.kernels.prefill.inputs import PrefillInputs
from labkernels.kernels.prefill.workload import Prefill
from labkernels.kernels.random_inputs import ExactNormal, Normal, n_pages, scattered
from labkernels.kernels.registry import discover
from labkernels.numerics import metrics, rounding
from labkernels.numerics.arrays import as_float64
from labkernels.numerics.emulation.running_max import attend, blocks
from labkernels.numerics.emulation.running_max import running_max as running_max

LENGTHS = (8192, 7000, 6144, 5001, 4096, 3333, 2560, 2047, 1500, 1024, 777, 512, 300, 257, 129, 100)
HEADS, HEAD_DIM, DTYPE, PAGE_SIZE = 4, 64, "bf16", 16
KERNEL = "prefill_mma"
SCALE = 1 / math.sqrt(HEAD_DIM)
SCALE_LOG2 = math.log2(math.e) / math.sqrt(HEAD_DIM)
LEAD = 10  # log2 units, by which recent keys lead where most samples then have equal bits


@dataclass(frozen=True)
class ComputePath:
    """How a path divides its work: the tile's rows, and its keys, taken in descending order."""

    name: str
    q_rows: int
    keys: int
    splits: int | None = 1
    keys_per_split: int | None = None

    @property
    def tile(self) -> str:
        """The kernel's tile of these rows and keys; its other numbers change no bit."""
        spec = discover()[KERNEL]
        for tile in spec.tiles(spec.shape(head_dim=HEAD_DIM), spec.policies[0]):
            if (tile.q_rows, tile.keys, tile.key_order) == (self.q_rows, self.keys, "descending"):
                return tile.label
        raise ValueError(f"{self.q_rows} rows and {self.keys} keys, allowed: tiles of {KERNEL}")

    @property
    def options(self) -> dict[str, Any]:
        """The options for the verbs."""
        splits = {"splits": self.splits, "keys_per_split": self.keys_per_split}
        return {"kernel": KERNEL, "tile": self.tile, **splits}

    def how(self, longest: int) -> dict[str, Any]:
        """Return the options for `attend`, in a batch whose longest sample has `longest` keys."""
        keys = self.keys_per_split
        if self.splits and self.splits > 1:
            keys = self.keys * math.ceil(longest / self.splits / self.keys)
        return {"keys": self.keys, "order": "descending", "keys_per_split": keys}


VARLEN = ComputePath("varlen", 128, 128)
KVCACHE = ComputePath("kvcache", 64, 256)
SPLIT = ComputePath("kvcache, 4 splits", 64, 256, splits=4)
ALIGNED = ComputePath("kvcache, aligned", 128, 128)
# One size of split on both paths: equal bits, and enough blocks for a step of one token.
VARLEN_FIXED = ComputePath("varlen, splits of 1024", 128, 128, splits=None, keys_per_split=1024)
KVCACHE_FIXED = ComputePath("kvcache, splits of 1024", 128, 128, splits=None, keys_per_split=1024)
CHOSEN = ComputePath(
    "kvcache, splits chosen", 64, 256, splits=None
)  # by the plan, for the whole batch


@dataclass(frozen=True, eq=False)
class Samples:
    """Tensors of some samples, one after the other. Shapes: qkv [total, 3, HEADS, HEAD_DIM]."""

    lengths: tuple[int, ...]
    qkv: Any

    @property
    def ends(self):
        """Cumulative lengths, int32 [samples + 1]."""
        return sums(self.lengths, self.qkv.device)

    def one(self, i: int) -> "Samples":
        """Return the tensors of sample i alone."""
        first = sum(self.lengths[:i])
        return Samples((self.lengths[i],), self.qkv[first : first + self.lengths[i]])

    @property
    def last_tokens(self):
        """The rows of the last tokens."""
        return self.ends[1:].long() - 1


def samples(lengths: tuple[int, ...] = LENGTHS, *, seed: int = 0, device: str = "cpu") -> Samples:
    """Draw nearly normal samples; a sample's bits depend on its length and the seed alone."""

    def draw(length: int):
        source = ExactNormal(seed * 100_003 + length, device)
        return source.tensor(DTYPE, length, 3, HEADS, HEAD_DIM)

    return Samples(lengths, torch.cat([draw(length) for length in lengths]))


def sums(lengths, device):
    """Return cumulative lengths, int32."""
    return torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32, device=device)


def varlen(given: Samples, path: ComputePath = VARLEN, *, whole: bool = False, **more):
    """Return the last tokens' outputs by a prefill of all tokens, or of the last query tile alone.

    A row's bits do not depend on the other rows of its tile, so both give the same bits.
    Shapes: [samples, HEADS, HEAD_DIM]
    """
    options = path.options | more | {"causal": True}
    if whole:
        return ops.varlen_qkvpacked(given.qkv, given.ends, **options).out[given.last_tokens]
    return ops.prefill(*last_rows(given).arguments, **options).out


def last_rows(given: Samples, tokens: int = 1) -> PrefillInputs:
    """Return the attention of each sample's last tokens: the last rows of a causal full pass."""
    (q, k, v), n = given.qkv.unbind(1), len(given.lengths)
    rows = torch.cat([torch.arange(end - tokens, end) for end in given.ends[1:].tolist()])
    work = Prefill((tokens,) * n, given.lengths, HEADS, HEADS, HEAD_DIM, causal=True)
    kv, ends = RaggedKV(k, v, given.ends), sums([tokens] * n, q.device)
    return PrefillInputs(work, q[rows], kv, ends, SCALE)


def cache_before_the_last(given: Samples):
    """Return a paged cache of all tokens but the last ones, whose pages lie in random order."""
    draw = Normal(0, str(given.qkv.device))
    shape = (n_pages(given.lengths, PAGE_SIZE), PAGE_SIZE, HEADS, HEAD_DIM)
    table, before = scattered(given.lengths, PAGE_SIZE, draw), given.ends.diff() - 1
    cache = PagedKV(*(given.qkv.new_zeros(shape) for _ in "kv"), table, before)
    for i in range(len(given.lengths)):
        page, slot = cache.places(i)
        for pool, rows in zip(cache.pools, given.one(i).qkv[:, 1:].unbind(1), strict=True):
            pool[page, slot] = rows[:-1]
    return cache


def whole_cache(given: Samples):
    """Return a paged cache of all tokens, to which the last ones were appended."""
    before, last = cache_before_the_last(given), given.last_tokens
    k, v = (x[last] for x in given.qkv[:, 1:].unbind(1))
    ops.append_step(before, k, v, sums([1] * len(last), k.device)).run()
    return PagedKV(before.k, before.v, before.page_table, given.ends.diff())


def kvcache(given: Samples, path: ComputePath = KVCACHE, **more):
    """Append the last tokens to a cache and attend; return the step, with its output and plan."""
    q, k, v = (x[given.last_tokens] for x in given.qkv.unbind(1))
    tokens = sums([1] * len(given.lengths), q.device)
    return ops.with_kvcache(q, cache_before_the_last(given), k, v, tokens, **path.options | more)


def scores_log2(given: Samples, i: int) -> np.ndarray:
    """Return exact scores of the last token of sample i. Shapes: [HEADS, length]."""
    q, k, _ = (as_float64(x) for x in given.one(i).qkv.unbind(1))
    return np.einsum("hd,nhd->hn", q[-1], k) * SCALE_LOG2


def values(given: Samples, i: int) -> np.ndarray:
    """Return the values of sample i in float64. Shapes: [HEADS, length, HEAD_DIM]."""
    return as_float64(given.one(i).qkv[:, 2]).transpose(1, 0, 2)


def max_is_first(given: Samples, path: ComputePath) -> np.ndarray:
    """Return whether a head's largest score lies in the block that the path takes first.

    Shapes: [samples, HEADS]
    """
    rows = []
    for i, length in enumerate(given.lengths):
        (taken,) = blocks(length, keys=path.keys, order="descending")
        rows.append(scores_log2(given, i).argmax(-1) >= taken[0].start)
    return np.array(rows)


def equal_rows(differ: np.ndarray, q, k, keys: int = VARLEN.keys) -> dict[str, float]:
    """Return how many rows the rule of thumb calls equal, and how many are, in percent.

    Rows of the first block are left out. The rule: the largest causal score of a row lies in the
    block of so many keys that is taken first.
    Shapes: differ [n, heads], of `differing`; q [n, heads, head_dim] of the last tokens; k [tokens,
    heads, head_dim].
    """
    scores = np.einsum("qhd,khd->qhk", as_float64(q), as_float64(k))
    place = np.arange(len(k) - len(q), len(k))
    scores = np.where(np.arange(len(k)) <= place[:, None, None], scores, -np.inf)
    later = place >= keys
    said = (scores.argmax(-1) >= (place // keys * keys)[:, None])[later]
    equal = differ[later] == 0
    shares = {"equal by the rule of thumb": said, "equal": equal, "of the rule's": equal[said]}
    return {name: 100 * float(share.mean()) for name, share in shares.items()}


def predicted(given: Samples, path: ComputePath) -> np.ndarray:
    """Return the stored outputs of a path whose only error is the rounding of its weights.

    Shapes: [samples, HEADS, HEAD_DIM]
    """
    how = path.how(max(given.lengths))
    outs = [
        attend(scores_log2(given, i), values(given, i), p_format=DTYPE, **how)
        for i in range(len(given.lengths))
    ]
    return rounding.round_to(np.stack(outs), DTYPE)


def with_recent_lead(given: Samples, lead_log2: float, *, half: int = 16) -> Samples:
    """Return samples whose last token's scores are raised for recent keys.

    The last key's score gains lead_log2, in units of log2, and an earlier key's gain halves every
    `half` keys: along the last query, each key gets as much as that takes, rounded to its dtype.
    """
    qkv = given.qkv.clone()
    for first, end in zip(given.ends[:-1].tolist(), given.ends[1:].tolist(), strict=True):
        q = qkv[end - 1, 0].double()
        back = torch.arange(end - first - 1, -1, -1, device=qkv.device)
        gain = lead_log2 * 0.5 ** (back.double() / half)
        along = q / (q.square().sum(-1, keepdim=True) * SCALE_LOG2)
        raised = qkv[first:end, 1].double() + gain[:, None, None] * along
        qkv[first:end, 1] = raised.to(qkv.dtype)
    return replace(given, qkv=qkv)


def truth(given: Samples) -> np.ndarray:
    """Return the last tokens' outputs in float64. Shapes: [samples, HEADS, HEAD_DIM]."""
    return live.truth(last_rows(given))


def differing(a, b) -> np.ndarray:
    """Return how many channels of each head differ. Shapes: a, b [samples, HEADS, HEAD_DIM]."""
    left, right = (x if isinstance(x, np.ndarray) else as_float64(x) for x in (a, b))
    return (metrics.difference(left, right) != 0).sum(-1)


def counts(heads, road: str) -> np.ndarray:
    """Return how many channels a recorded road's heads differ in, from rows of two_roads_heads.

    heads: a pandas.DataFrame of these rows. Shapes: [samples, HEADS].
    """
    rows = heads[heads.road == road].sort_values(["sample", "head"])
    found: np.ndarray = rows.different.to_numpy().reshape(-1, HEADS)
    return found


def on_every_kernel(given: Samples) -> dict[str, dict[str, np.ndarray]]:
    """Return the last tokens' outputs by every kernel of live.KERNELS: operation, way, output.

    A decode takes them from the cache, after the append; a prefill as the last rows of a full pass.
    Shapes: [samples, HEADS, HEAD_DIM] each.
    """
    prefill = last_rows(given)
    work = Decode(given.lengths, HEADS, HEADS, HEAD_DIM)
    decode = DecodeInputs(work, prefill.q, whole_cache(given), SCALE)
    return {name: live.outputs(name, x) for name, x in (("decode", decode), ("prefill", prefill))}

"""A kernel at fixed sizes: the attention meant, its float64 answer, and calls that read weights."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from labkernels.probing.layouts import PLAIN, Answer, Kernel, Memory, rounded, smallest, unit
from labkernels.variant import FULL, AttentionVariant


@dataclass(frozen=True)
class Sizes:
    """Requests, query and KV heads, queries, keys, channels; lens: the keys of each request."""

    batch: int
    q_heads: int
    kv_heads: int
    queries: int
    keys: int
    dim: int
    dim_v: int
    lens: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Model:
    """The attention that outputs are judged by. top_left: query i sees keys 0 to i.

    Shapes: sinks, slopes [query heads], natural units.
    """

    variant: AttentionVariant = FULL
    scale: float = 1.0
    sinks: np.ndarray | None = None
    slopes: np.ndarray | None = None
    top_left: bool = False


@dataclass
class Case:
    """A kernel at fixed sizes, with the model that it is judged by and random inputs.

    raw: weights that were read, by experiment. compared: calls with special inputs. bend: the soft
    cap as read, inf if there is none, None if not read. row: one row of V, without small numbers.
    Shapes: as in layouts.py.
    """

    kernel: Kernel
    s: Sizes
    model: Model
    label: str
    seed: int = 0
    knobs: Mapping[str, Any] = field(default_factory=dict)
    raw: dict[str, np.ndarray] = field(default_factory=dict)
    bend: float | None = None
    compared: list = field(default_factory=list)

    def __post_init__(self) -> None:
        s, self.rng = self.s, np.random.default_rng(self.seed)
        self.group = s.q_heads // s.kv_heads
        self.lens = np.array(s.lens or (s.keys,) * s.batch)
        sign = self.rng.choice([-1, 1], s.dim_v)
        self.row = self.rounded(self.rng.uniform(1, 2, s.dim_v) * sign)
        self.q = self.normal(s.batch, s.q_heads, s.queries, s.dim)
        self.k = self.normal(s.batch, s.kv_heads, s.keys, s.dim)
        self.v = self.normal(s.batch, s.kv_heads, s.keys, s.dim_v)
        self.zero = np.zeros_like(self.q)
        self.judge_by(self.model)

    def judge_by(self, model: Model) -> None:
        """Take another model to judge by."""
        s, self.model = self.s, model
        query, length = np.arange(s.queries)[:, None], self.lens[:, None, None]
        # A mask that is aligned to the first key is that of as many queries as keys.
        q_len = length if model.top_left else s.queries
        begin, end = (f(query, q_len, length) for f in (model.variant.begin, model.variant.end))
        place, key = query + length - q_len, np.arange(s.keys)
        seen = np.broadcast_to((key >= begin) & (key < end), (s.batch, s.queries, s.keys))
        self.distance = np.broadcast_to(place - key, seen.shape)
        self.seen = np.broadcast_to(seen[:, None], (s.batch, s.q_heads, s.queries, s.keys))
        self.seen_any: np.ndarray = np.any(self.seen, -1)
        slopes = np.zeros(1) if model.slopes is None else np.asarray(model.slopes)
        self.bias = slopes[:, None, None] * self.distance[:, None]

    @property
    def u(self) -> float:
        """The larger of the unit roundoffs of the inputs and the output."""
        return max(unit(self.kernel.dtype), unit(self.kernel.out_dtype))

    @property
    def floor(self) -> float:
        """Weights below this may be lost."""
        return max(smallest(self.kernel.dtype), smallest(self.kernel.out_dtype))

    @property
    def tol(self) -> float:
        """How far, relatively, a right weight may be off.

        P and the output are rounded once each, and a sum may add half a unit: 3 units; an exp2 by a
        cubic adds 1e-4 (1e-5 in fp32, where none is as coarse).
        """
        return max(3 * self.u + (2e-4 if self.u > 1e-6 else 0), 3e-5)

    def rounded(self, x: np.ndarray) -> np.ndarray:
        """Return numbers rounded to the dtype of the inputs."""
        return rounded(x, self.kernel.dtype)

    def normal(self, *shape: int) -> np.ndarray:
        """Return random normal numbers of the inputs' dtype."""
        return self.rounded(self.rng.standard_normal(shape))

    def like(self, of: np.ndarray, x: np.ndarray) -> np.ndarray:
        """Return x, rounded, in all requests and heads (and rows) of a tensor of this shape."""
        return np.broadcast_to(self.rounded(x), of.shape)

    def of_heads(self, x: np.ndarray) -> np.ndarray:
        """Return K or V repeated for the query heads of each group."""
        return np.repeat(x, self.group, 1)

    def scores(self, q: np.ndarray, k: np.ndarray, more: np.ndarray | float = 0.0) -> np.ndarray:
        """Return natural scores, -inf where hidden; more: a further product of Q and K."""
        m = self.model
        x = (q @ self.of_heads(k).swapaxes(-1, -2) + more) * m.scale
        if m.variant.soft_cap:
            x = m.variant.soft_cap * np.tanh(x / m.variant.soft_cap)
        return np.where(self.seen, x - self.bias, -np.inf)

    def weights(self, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return softmax with sinks, zeros for rows without keys, and the log-sum-exp."""
        p, sink, top = self.exponentials(scores)
        total = p.sum(-1, keepdims=True) + sink
        lse = (np.log(total) + top)[..., 0]
        return p / np.where(total == 0, 1, total), lse

    def exponentials(self, scores: np.ndarray):
        """Return exp(scores - top), what a sink adds to their sum, and top, the maximum or 0."""
        top = scores.max(-1, keepdims=True, initial=-np.inf)
        top, sinks = np.where(np.isfinite(top), top, 0), self.model.sinks
        sink = 0.0 if sinks is None else np.exp(np.asarray(sinks)[:, None, None] - top)
        return np.exp(scores - top), sink, top

    def expected(self, q: np.ndarray, k: np.ndarray, v: np.ndarray, more: np.ndarray | float = 0.0):
        """Return output, the same with |V|, and the log-sum-exp, in float64."""
        p, lse = self.weights(self.scores(q, k, more))
        v = self.of_heads(v)
        return p @ v, p @ np.abs(v), lse

    def far(self, out: np.ndarray, want: np.ndarray | None = None) -> np.ndarray:
        """Return the rows [B, H, M] that no rounding explains; want: of q, k and v if None."""
        right, mass, _ = self.expected(self.q, self.k, self.v)
        gap = np.abs(out - (right if want is None else want))
        return ~(gap <= 4 * self.tol * (mass + 0.1)).all(-1)

    def answer(self, q, k, v, memory: Memory = PLAIN, **how) -> Answer:
        """Call the kernel at this case's lengths."""
        return self.kernel(q, k, v, self.s.lens, memory, self.knobs, **how)

    def call(self, q: np.ndarray, k: np.ndarray, v: np.ndarray, **how) -> np.ndarray:
        """Call the kernel, and return its output alone."""
        return self.answer(q, k, v, **how)[0]

    def read(self, q: np.ndarray, k: np.ndarray, tag: np.ndarray | None = None) -> np.ndarray:
        """Return the weights [B, H, M, N] that the kernel gives: V is one-hot, block by block.

        tag [B, Hkv]: a number for each head by which its V is multiplied.
        """
        s, found = self.s, []
        for block in range(0, s.keys, s.dim_v):
            n = np.arange(min(s.dim_v, s.keys - block))
            # No channel stays with its key from block to block, unless 5 divides their number.
            step = 5 if s.dim_v % 5 else 1
            channel = (n * step + 11 * block // s.dim_v) % s.dim_v
            v = np.zeros(self.v.shape)
            v[..., block + n, channel] = 1.0
            v = v if tag is None else v * tag[:, :, None, None]
            found.append(self.call(q, k, v)[..., channel])
        return np.concatenate(found, -1)

"""The variant of attention: which keys a query sees, and how its scores are changed."""

from dataclasses import dataclass
from typing import Any, TypeAlias

# An int, or an array of integers of NumPy or torch, neither of which this module may import.
Integers: TypeAlias = Any


@dataclass(frozen=True)
class AttentionVariant:
    """The attention that a call asks for, apart from its tensors.

    causal: query i of n, in a request of L keys, sees keys 0 to L - n + i. window_left: with or
    without a causal mask, a query sees no key before L - n + i - window_left, as in FlashAttention
    and FlashInfer. window_right: nor a key after L - n + i + window_right, as in FlashAttention.
    soft_cap: scores become soft_cap * tanh(score / soft_cap). sinks, alibi: whether
    each head has a sink score, or a slope by which scores fall with distance. mask: whether each
    query has a bit for each key, which hides keys that are seen otherwise. reach: each head has a
    bias for each distance up to it, as T5 has; keys farther away have that of the farthest.
    """

    causal: bool = False
    window_left: int | None = None
    window_right: int | None = None
    soft_cap: float | None = None
    sinks: bool = False
    alibi: bool = False
    mask: bool = False
    reach: int | None = None

    def begin(self, query: Integers, q_len: Integers, kv_len: Integers) -> Integers:
        """Return the first key that a query of a request sees; takes integers or arrays."""
        if self.window_left is None:
            return 0 * (query + kv_len)
        return _clip(kv_len - q_len + query - self.window_left, kv_len)

    def end(self, query: Integers, q_len: Integers, kv_len: Integers) -> Integers:
        """Return one past the last key that a query of a request sees; takes integers or arrays."""
        right = 0 if self.causal else self.window_right
        if right is None:
            return kv_len + 0 * query
        return _clip(kv_len - q_len + query + 1 + right, kv_len)

    def seen(self, query: Integers, q_len: Integers, kv_len: Integers) -> Integers:
        """Return how many keys a query of a request sees; takes integers or arrays."""
        return self.end(query, q_len, kv_len) - self.begin(query, q_len, kv_len)

    def pairs(self, q_len: int, kv_len: int) -> int:
        """Return the sum of `seen` over all queries of a request."""
        before, right = kv_len - q_len, 0 if self.causal else self.window_right
        ends = q_len * kv_len
        if right is not None:
            ends = _sum_of_clipped(before + 1 + right, q_len, kv_len)
        left = self.window_left
        return ends - (0 if left is None else _sum_of_clipped(before - left, q_len, kv_len))

    @property
    def features(self) -> tuple[str, ...]:
        """What kernels are compiled for, of FEATURES; a causal mask is no feature."""
        on = (self.window_left, self.window_right, self.soft_cap)
        window, cap = on[:2] != (None, None), self.soft_cap is not None
        others = (self.alibi, self.sinks, self.mask, self.reach is not None)
        asked = dict(zip(FEATURES, (window, cap, *others), strict=True))
        return tuple(name for name, is_on in asked.items() if is_on)

    @property
    def label(self) -> str:
        """The features in one line, "" without any: "window 1024, soft cap 50, slopes, sinks".

        Keys before a query's place stand alone, or before a slash and the keys after the place.
        """
        left, right = ("all" if x is None else x for x in (self.window_left, self.window_right))
        window = f"window {left}" + ("" if right == "all" else f"/{right}")
        named = ("slopes", "sinks", "bit mask", f"biases to {self.reach}")
        words = (window, f"soft cap {self.soft_cap or 0:g}", *named)
        of = dict(zip(FEATURES, words, strict=True))
        return ", ".join(of[feature] for feature in self.features)

    @property
    def numbers_per_head(self) -> int:
        """How many fp32 numbers each query head has: its slope, its sink, its biases."""
        return self.alibi + self.sinks + (0 if self.reach is None else 2 * self.reach + 1)


# As the template arguments of lab::AttentionVariant.
FEATURES = ("window", "soft_cap", "alibi", "sinks", "mask", "bias")
UNMASKED = FEATURES[:4]  # of kernels that read no bits and no biases
FULL, CAUSAL = AttentionVariant(), AttentionVariant(causal=True)


def _clip(key: Integers, kv_len: Integers) -> Integers:
    """Return a number of keys, clamped to the keys that exist."""
    if hasattr(key, "clip"):
        return key.clip(0, kv_len)
    return max(0, min(key, kv_len))


def _sum_of_clipped(first: int, count: int, kv_len: int) -> int:
    """Return the sum of `count` numbers from `first` on, each clamped to the keys that exist."""
    below: int = _clip(-first, count)
    above: int = _clip(first + count - kv_len, count)
    inside = count - below - above
    return above * kv_len + inside * (first + below) + inside * (inside - 1) // 2

"""The base of all workloads: shapes that are checked once, FLOPs, and bytes to move.

FLOPs are those of the matrix products; exponentials are counted separately. Bytes count each input
read once and each output written once, as in a perfect kernel.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Protocol

from labkernels.units import require_int
from labkernels.variant import FULL, AttentionVariant

DTYPES = ("fp16", "bf16", "fp32", "fp64")
LSE_BYTES = 4
VARIANT_BYTES = 4  # of a slope or a sink
KV_DTYPES = ("e4m3", "e5m2")  # of a cache of 8 bits
SCALE_BYTES = 4


class Workload(Protocol):
    """The shapes of a call, and the work of a perfect kernel."""

    @property
    def dtype(self) -> str:
        """The format of Q, K and V."""

    @property
    def variant(self) -> AttentionVariant:
        """Which attention."""

    @property
    def bytes(self) -> int:
        """Bytes of each input read once and each output written once."""

    @property
    def flops(self) -> int:
        """FLOPs of the matrix products."""

    @property
    def label(self) -> str:
        """The workload in one line."""


class Requests:
    """Several requests, each with keys: the base of all workloads."""

    kv_lens: tuple[int, ...]

    @property
    def batch(self) -> int:
        """Number of requests."""
        return len(self.kv_lens)


@dataclass(frozen=True)
class Tokens(Requests):
    """Query tokens of several requests and their keys: the base of a prefill and its gradients.

    variant: which attention. causal is the variant's, unless it is given: then the variant takes
    it. head_dim_v: channels of V and out, if they differ from those of q and K.
    """

    q_lens: tuple[int, ...]
    kv_lens: tuple[int, ...]
    q_heads: int
    kv_heads: int
    head_dim: int
    causal: bool = None  # type: ignore[assignment]  # None becomes the variant's
    dtype: str = "bf16"
    head_dim_v: int = None  # type: ignore[assignment]  # None becomes head_dim
    variant: AttentionVariant = field(default=FULL, kw_only=True)

    def __post_init__(self) -> None:
        set_lengths(self, "q_lens")
        set_lengths(self, "kv_lens")
        if len(self.q_lens) != len(self.kv_lens):
            allowed = f"as many as q_lens, {len(self.q_lens)}"
            raise ValueError(f"kv_lens has {len(self.kv_lens)} lengths, allowed: {allowed}")
        check_heads(self)
        if self.head_dim_v is None:
            object.__setattr__(self, "head_dim_v", self.head_dim)
        require_int("head_dim_v", self.head_dim_v, minimum=1)
        if self.causal is None:
            object.__setattr__(self, "causal", self.variant.causal)
        if not isinstance(self.causal, bool):
            raise ValueError(f"causal = {self.causal!r}, allowed: True, False")
        object.__setattr__(self, "variant", replace(self.variant, causal=self.causal))
        check_dtype(self.dtype)

    @property
    def group(self) -> int:
        """Query heads that share a KV head."""
        return self.q_heads // self.kv_heads

    @property
    def exps(self) -> int:
        """Exponentials of the softmax: one per query head and key that the FLOPs count."""
        return exps_of(self._doubled_pairs() * self.q_heads // 2, self.variant)

    @property
    def variant_bytes(self) -> int:
        """Bytes of the variant's slopes and sinks, and of its mask's bits."""
        bits = (m * n for m, n in zip(self.q_lens, self.kv_lens, strict=True))
        masked = sum(-(-n // 8) for n in bits) if self.variant.mask else 0
        return self.variant.numbers_per_head * VARIANT_BYTES * self.q_heads + masked

    def _rows(self) -> tuple[int, int]:
        """Return the rows of q and out, and rows of K and V, over all requests and heads.

        The keys of a request begin where its first query's window begins, and end with its last's.
        """
        begin, end = self.variant.begin, self.variant.end
        lengths = zip(self.q_lens, self.kv_lens, strict=True)
        keys = sum(end(m - 1, m, n) - begin(0, m, n) for m, n in lengths)
        return sum(self.q_lens) * self.q_heads, keys * self.kv_heads

    def _doubled_pairs(self) -> int:
        lengths = zip(self.q_lens, self.kv_lens, strict=True)
        if "window" in self.variant.features:  # each query's own keys, as benchmarks count them
            return sum(2 * self.variant.pairs(m, n) for m, n in lengths)
        if not self.causal:
            return sum(2 * m * n for m, n in lengths)
        # By the convention of `Prefill.flops` a query has (max(0, n - m) + n) / 2 keys. For n >= m
        # that is half a key less than the mean. Twice the number is whole.
        return sum(m * (max(0, n - m) + n) for m, n in lengths)

    def _label(self, further: str = "") -> str:
        of_v = "" if self.head_dim_v == self.head_dim else f"/{self.head_dim_v}"
        lengths = f"{lengths_label(self.q_lens)} on {lengths_label(self.kv_lens)}"
        heads = f"{self.q_heads}/{self.kv_heads}, d{self.head_dim}{of_v}{further}"
        mask = "causal" if self.causal else "full"
        return labelled(f"{lengths}, {heads}, {mask}, {self.dtype}", self.variant)


def exps_of(scores: int, variant: AttentionVariant) -> int:
    """Return the exponentials of scores; the tanh of a soft cap takes as long as one more."""
    return scores * (2 if variant.soft_cap is not None else 1)


def labelled(plain: str, variant: AttentionVariant) -> str:
    """Return the label of a plain workload, with the variant's features."""
    return ", ".join(filter(None, (plain, variant.label)))


def set_lengths(workload: object, field: str) -> None:
    """Check a field of lengths and keep it as a tuple."""
    value = getattr(workload, field)
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise ValueError(f"{field} = {value!r}, allowed: a sequence of integers >= 0")
    lengths = tuple(require_int(f"{field}[{i}]", n) for i, n in enumerate(value))
    if not lengths:
        raise ValueError(f"{field} = {value!r}, allowed: at least one length")
    # a list is accepted, but kept as a tuple so that workloads hash and compare
    object.__setattr__(workload, field, lengths)


def check_heads(workload: object) -> None:
    """Raise ValueError unless heads and channels are positive, and query heads share KV heads."""
    fields = ("q_heads", "kv_heads", "head_dim")
    q_heads, kv_heads, _ = (require_int(f, getattr(workload, f), minimum=1) for f in fields)
    if q_heads % kv_heads:
        raise ValueError(f"q_heads = {q_heads!r}, allowed: a multiple of kv_heads = {kv_heads}")


def check_dtype(
    dtype: str | None, field: str = "dtype", allowed: Iterable[str | None] = DTYPES
) -> None:
    """Raise ValueError unless a field's format is one of those that are allowed."""
    if dtype not in allowed:
        raise ValueError(f"{field} = {dtype!r}, allowed: {', '.join(map(str, allowed))}")


def lengths_label(lengths: tuple[int, ...]) -> str:
    """Return lengths in a few words: "57 x 8192", "ragged 64 x <=13516"."""
    if len(set(lengths)) == 1:
        return f"{len(lengths)} x {lengths[0]}"
    return f"ragged {len(lengths)} x <={max(lengths)}"

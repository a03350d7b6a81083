"""The workload of a decode: shapes checked once, FLOPs and bytes."""

from dataclasses import dataclass
from typing import Self

from labkernels.formats import named
from labkernels.kernels.workload import (
    KV_DTYPES,
    LSE_BYTES,
    SCALE_BYTES,
    VARIANT_BYTES,
    Requests,
    check_dtype,
    check_heads,
    exps_of,
    labelled,
    lengths_label,
    set_lengths,
)
from labkernels.units import require_int
from labkernels.variant import FULL, AttentionVariant


@dataclass(frozen=True)
class Decode(Requests):
    """One query token per request against a paged K/V cache, possibly of unequal lengths.

    variant: which attention; the query is the last key of its request, with or without a causal
    mask. kv_dtype: the format of a cache of 8 bits, e4m3 or e5m2; None if K and V have the dtype.
    Such a cache has a scale for K and one for V of each KV head, and of each keys_per_scale keys of
    a page, which this number divides; None: of all keys.
    Shapes: q, out [batch, q_heads, head_dim]; K, V kv_len x [kv_heads, head_dim] per request.
    Raises: ValueError naming the field, its value and what is allowed.
    """

    kv_lens: tuple[int, ...]
    q_heads: int
    kv_heads: int
    head_dim: int
    page_size: int = 16
    dtype: str = "bf16"
    variant: AttentionVariant = FULL
    kv_dtype: str | None = None
    keys_per_scale: int | None = None

    def __post_init__(self) -> None:
        set_lengths(self, "kv_lens")
        check_heads(self)
        require_int("page_size", self.page_size, minimum=1)
        check_dtype(self.dtype)
        check_dtype(self.kv_dtype, "kv_dtype", (None, *KV_DTYPES))
        keys = self.keys_per_scale
        if keys is not None and (not self.kv_dtype or keys < 1 or self.page_size % keys):
            allowed = f"a divisor of {self.page_size} with a kv_dtype"
            raise ValueError(f"keys_per_scale = {keys}, allowed: None, or {allowed}")

    @classmethod
    def uniform(
        cls,
        batch: int,
        kv_len: int,
        *,
        q_heads: int,
        kv_heads: int,
        head_dim: int = 128,
        page_size: int = 16,
        dtype: str = "bf16",
        variant: AttentionVariant = FULL,
        kv_dtype: str | None = None,
        keys_per_scale: int | None = None,
    ) -> Self:
        """Return the workload of `batch` requests that all have `kv_len` keys."""
        lengths = (kv_len,) * require_int("batch", batch, minimum=1)
        sizes = (q_heads, kv_heads, head_dim, page_size)
        return cls(lengths, *sizes, dtype, variant, kv_dtype, keys_per_scale)

    @property
    def group(self) -> int:
        """Query heads that share a KV head."""
        return self.q_heads // self.kv_heads

    @property
    def max_kv_len(self) -> int:
        """Keys of the longest request."""
        return max(self.kv_lens)

    @property
    def kv_bytes(self) -> int:
        """Bytes of the K and V that a query sees, each read once."""
        row_bytes = self.kv_heads * self.head_dim * named(self.kv_dtype or self.dtype).bytes
        return 2 * self._keys * row_bytes

    @property
    def scale_bytes(self) -> int:
        """Bytes of the scales of a cache of 8 bits that a query sees, each read once."""
        keys = self.keys_per_scale
        seen = (self.variant.seen(0, 1, length) for length in self.kv_lens)
        each = sum(-(-n // keys) for n in seen) if keys else int(self.kv_dtype is not None)
        return 2 * each * self.kv_heads * SCALE_BYTES

    @property
    def bytes(self) -> int:
        """Bytes of K, V, their scales, q, out and the fp32 LSE, each moved once."""
        rows = self.batch * self.q_heads
        rows_bytes = rows * (2 * self.head_dim * named(self.dtype).bytes + LSE_BYTES)
        of_heads = self.variant.numbers_per_head * VARIANT_BYTES * self.q_heads
        return self.kv_bytes + self.scale_bytes + rows_bytes + of_heads

    @property
    def flops(self) -> int:
        """FLOPs of q K^T and P V: 4 for each query head, key that it sees, and channel."""
        return 4 * self._keys * self.q_heads * self.head_dim

    @property
    def exps(self) -> int:
        """Exponentials of the softmax: one for each query head and key that it sees."""
        return exps_of(self._keys * self.q_heads, self.variant)

    @property
    def _keys(self) -> int:
        """How many keys the queries of all requests see."""
        seen: int = sum(self.variant.seen(0, 1, length) for length in self.kv_lens)
        return seen

    @property
    def label(self) -> str:
        """The workload in one line: "57 x 8192, 32/8, d128, page 16, bf16"."""
        heads = f"{self.q_heads}/{self.kv_heads}"
        lengths = lengths_label(self.kv_lens)
        plain = f"{lengths}, {heads}, d{self.head_dim}, page {self.page_size}, {self.dtype}"
        return labelled(plain + self.cache_label, self.variant)

    @property
    def cache_label(self) -> str:
        """What a label says of a cache of 8 bits: ", e4m3 cache, scales per 16 keys"."""
        cache = f", {self.kv_dtype} cache" if self.kv_dtype else ""
        return cache + (f", scales per {self.keys_per_scale} keys" if self.keys_per_scale else "")

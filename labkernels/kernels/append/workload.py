"""The workload of an append: shapes checked once, bytes that it moves."""

from dataclasses import dataclass
from typing import ClassVar

from labkernels.formats import named
from labkernels.kernels.workload import (
    KV_DTYPES,
    SCALE_BYTES,
    Requests,
    check_dtype,
    lengths_label,
    set_lengths,
)
from labkernels.units import require_int
from labkernels.variant import FULL, AttentionVariant


@dataclass(frozen=True)
class Append(Requests):
    """New keys and values of several requests, and how many keys each request had before.

    kv_dtype: the format of a cache of 8 bits, which has a scale of K and one of V for each head.
    Shapes: k_new, v_new [sum(new_lens), kv_heads, head_dim].
    Raises: ValueError naming the field, its value and what is allowed.
    """

    kv_lens: tuple[int, ...]
    new_lens: tuple[int, ...]
    kv_heads: int
    head_dim: int
    page_size: int = 16
    dtype: str = "bf16"
    kv_dtype: str | None = None
    variant: ClassVar[AttentionVariant] = FULL  # of every workload; an append computes no scores

    def __post_init__(self) -> None:
        set_lengths(self, "kv_lens")
        set_lengths(self, "new_lens")
        if len(self.new_lens) != len(self.kv_lens):
            allowed = f"as many as kv_lens, {len(self.kv_lens)}"
            raise ValueError(f"new_lens has {len(self.new_lens)} lengths, allowed: {allowed}")
        for field in ("kv_heads", "head_dim", "page_size"):
            require_int(field, getattr(self, field), minimum=1)
        check_dtype(self.dtype)
        check_dtype(self.kv_dtype, "kv_dtype", (None, *KV_DTYPES))

    @property
    def group(self) -> int:
        """Query heads that share a KV head: 1, since an append has no queries."""
        return 1

    @property
    def bytes(self) -> int:
        """Bytes of the new keys and values, each read once and written once, and of scales."""
        widths = named(self.dtype).bytes + named(self.kv_dtype or self.dtype).bytes
        of_head = sum(self.new_lens) * self.head_dim * widths
        return 2 * self.kv_heads * (of_head + (SCALE_BYTES if self.kv_dtype else 0))

    @property
    def flops(self) -> int:
        """Always 0: rows are only moved."""
        return 0

    @property
    def exps(self) -> int:
        """Always 0."""
        return 0

    @property
    def label(self) -> str:
        """The workload in one line: "64 x 1 after 64 x 8192, 8 heads, d128, page 16, bf16"."""
        lengths = f"{lengths_label(self.new_lens)} after {lengths_label(self.kv_lens)}"
        heads = f"{self.kv_heads} heads, d{self.head_dim}"
        cache = f", {self.kv_dtype} cache" if self.kv_dtype else ""
        return f"{lengths}, {heads}, page {self.page_size}, {self.dtype}{cache}"

"""The workload of a prefill: shapes checked once, FLOPs and bytes."""

from dataclasses import dataclass

from labkernels.formats import named
from labkernels.kernels.workload import LSE_BYTES, Tokens
from labkernels.units import require_int


@dataclass(frozen=True)
class Prefill(Tokens):
    """Many query tokens per request over the request's keys, with or without a causal mask.

    causal, variant, head_dim_v: as in Tokens. page_size: keys per page of a cache; None for ragged
    K and V, which hold one request's keys after the other's.
    Shapes: per request q is q_len x [q_heads, head_dim], out q_len x [q_heads, head_dim_v];
        K, V kv_len x [kv_heads, head_dim or head_dim_v].
    Raises: ValueError naming the field, its value and what is allowed.
    """

    page_size: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.page_size is not None:
            require_int("page_size", self.page_size, minimum=1)

    @property
    def bytes(self) -> int:
        """Bytes of q, out, the fp32 LSE, and the K and V that a query sees, each moved once."""
        q_rows, kv_rows = self._rows()
        channels = (q_rows + kv_rows) * (self.head_dim + self.head_dim_v)
        return channels * named(self.dtype).bytes + q_rows * LSE_BYTES + self.variant_bytes

    @property
    def flops(self) -> int:
        """FLOPs of the two products; a causal mask counts half the square, as benchmarks do.

        With a window, each query counts the keys that it sees.
        Source: FlashAttention's benchmark_flash_attention.py, which makes rates comparable.
        """
        return self._doubled_pairs() * self.q_heads * (self.head_dim + self.head_dim_v)

    @property
    def label(self) -> str:
        """The workload in one line: "4 x 2048 on 4 x 2048, 16/16, d128, causal, bf16"."""
        return self._label("" if self.page_size is None else f", page {self.page_size}")

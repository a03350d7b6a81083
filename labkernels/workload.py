"""Attention workloads: shapes checked once, with the FLOPs they need and the bytes they move.

FLOPs are those of the two matrix products; exponentials are counted apart. Bytes are each input
read once and each output written once, which is what a perfect kernel moves.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from labkernels.formats import named
from labkernels.units import require_int

DTYPES = ("fp16", "bf16", "fp32", "fp64")
LSE_BYTES = 4


@dataclass(frozen=True)
class Decode:
    """One query token a request against a paged K/V cache, possibly of unequal lengths.

    Shapes: q, out [batch, q_heads, head_dim]; K, V kv_len x [kv_heads, head_dim] a request.
    Raises: ValueError naming the field, its value and what is allowed.
    """

    kv_lens: tuple[int, ...]
    q_heads: int
    kv_heads: int
    head_dim: int
    page_size: int = 16
    dtype: str = "bf16"

    def __post_init__(self) -> None:
        _set_lengths(self, "kv_lens")
        _check_heads(self)
        require_int("page_size", self.page_size, minimum=1)
        _check_dtype(self.dtype)

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
    ) -> "Decode":
        """The workload of `batch` requests that all have `kv_len` keys."""
        lengths = (kv_len,) * require_int("batch", batch, minimum=1)
        return cls(lengths, q_heads, kv_heads, head_dim, page_size, dtype)

    @property
    def batch(self) -> int:
        """Number of requests."""
        return len(self.kv_lens)

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
        """Bytes of K and V, each read once."""
        row_bytes = self.kv_heads * self.head_dim * named(self.dtype).bytes
        return 2 * sum(self.kv_lens) * row_bytes

    @property
    def bytes(self) -> int:
        """Bytes of K, V, q, out and the fp32 LSE, each moved once."""
        rows = self.batch * self.q_heads
        return self.kv_bytes + rows * (2 * self.head_dim * named(self.dtype).bytes + LSE_BYTES)

    @property
    def flops(self) -> int:
        """FLOPs of q K^T and P V: 4 for each query head, key and head dimension."""
        return 4 * self.exps * self.head_dim

    @property
    def exps(self) -> int:
        """Exponentials of the softmax: one for each query head and key."""
        return sum(self.kv_lens) * self.q_heads

    @property
    def label(self) -> str:
        """The workload in one line: "57 x 8192, 32/8, d128, page 16, bf16"."""
        heads = f"{self.q_heads}/{self.kv_heads}"
        lengths = _lengths_label(self.kv_lens)
        return f"{lengths}, {heads}, d{self.head_dim}, page {self.page_size}, {self.dtype}"


@dataclass(frozen=True)
class _Tokens:
    """Query tokens of several requests and their keys: what a prefill and its gradients share."""

    q_lens: tuple[int, ...]
    kv_lens: tuple[int, ...]
    q_heads: int
    kv_heads: int
    head_dim: int
    causal: bool = False
    dtype: str = "bf16"

    def __post_init__(self) -> None:
        _set_lengths(self, "q_lens")
        _set_lengths(self, "kv_lens")
        if len(self.q_lens) != len(self.kv_lens):
            allowed = f"as many as q_lens, {len(self.q_lens)}"
            raise ValueError(f"kv_lens has {len(self.kv_lens)} lengths, allowed: {allowed}")
        _check_heads(self)
        if not isinstance(self.causal, bool):
            raise ValueError(f"causal = {self.causal!r}, allowed: True, False")
        _check_dtype(self.dtype)

    @property
    def batch(self) -> int:
        """Number of requests."""
        return len(self.q_lens)

    @property
    def group(self) -> int:
        """Query heads that share a KV head."""
        return self.q_heads // self.kv_heads

    def _rows(self) -> tuple[int, int]:
        """Rows of q and out, and rows of K and V, over all requests and heads."""
        return sum(self.q_lens) * self.q_heads, sum(self.kv_lens) * self.kv_heads

    def _doubled_pairs(self) -> int:
        lengths = zip(self.q_lens, self.kv_lens, strict=True)
        if not self.causal:
            return sum(2 * m * n for m, n in lengths)
        # a query sees (max(0, n - m) + n) / 2 keys on average, and the double of it is whole
        return sum(m * (max(0, n - m) + n) for m, n in lengths)

    def _label(self, dims: str) -> str:
        lengths = f"{_lengths_label(self.q_lens)} on {_lengths_label(self.kv_lens)}"
        heads = f"{self.q_heads}/{self.kv_heads}, {dims}"
        mask = "causal" if self.causal else "full"
        return f"{lengths}, {heads}, {mask}, {self.dtype}"


@dataclass(frozen=True)
class Prefill(_Tokens):
    """Many query tokens a request against its keys; a causal mask lets query i see the last ones.

    head_dim_v: channels of V and out, where they are not those of q and K. page_size: of a paged
    cache; None where K and V are ragged, one request's keys behind those of the one before.
    Shapes: q q_len x [q_heads, head_dim] and out q_len x [q_heads, head_dim_v] a request;
        K, V kv_len x [kv_heads, head_dim or head_dim_v].
    Raises: ValueError naming the field, its value and what is allowed.
    """

    head_dim_v: int | None = None
    page_size: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.head_dim_v is None:
            object.__setattr__(self, "head_dim_v", self.head_dim)
        require_int("head_dim_v", self.head_dim_v, minimum=1)
        if self.page_size is not None:
            require_int("page_size", self.page_size, minimum=1)

    @property
    def bytes(self) -> int:
        """Bytes of q, K, V, out and the fp32 LSE, each moved once."""
        q_rows, kv_rows = self._rows()
        channels = (q_rows + kv_rows) * (self.head_dim + self.head_dim_v)
        return channels * named(self.dtype).bytes + q_rows * LSE_BYTES

    @property
    def flops(self) -> int:
        """FLOPs of the two products; a causal mask counts half the square, as benchmarks do.

        Source: FlashAttention's benchmark_flash_attention.py, so that rates compare.
        """
        return self._doubled_pairs() * self.q_heads * (self.head_dim + self.head_dim_v)

    @property
    def label(self) -> str:
        """The workload in one line: "4 x 2048 on 4 x 2048, 16/16, d128, causal, bf16"."""
        dims = f"d{self.head_dim}"
        if self.head_dim_v != self.head_dim:
            dims += f"/{self.head_dim_v}"
        pages = "" if self.page_size is None else f", page {self.page_size}"
        return self._label(dims + pages)


@dataclass(frozen=True)
class Backward(_Tokens):
    """The gradients of a prefill: dq, dK and dV from q, K, V, out, the LSE and d_out.

    page_size: None, as a prefill's whose K and V are ragged.
    Shapes: as Prefill; every gradient has the shape of its tensor.
    Raises: ValueError naming the field, its value and what is allowed.
    """

    page_size: ClassVar[None] = None

    @property
    def bytes(self) -> int:
        """Bytes of q, out, d_out, dq, K, V, dK, dV and the fp32 LSE, each moved once."""
        q_rows, kv_rows = self._rows()
        tensors = 4 * (q_rows + kv_rows) * self.head_dim * named(self.dtype).bytes
        return tensors + q_rows * LSE_BYTES

    @property
    def flops(self) -> int:
        """FLOPs of the five products of the backward pass: 2.5 times the forward's."""
        return 5 * self._doubled_pairs() * self.q_heads * self.head_dim

    @property
    def label(self) -> str:
        """The workload in one line, as a prefill's."""
        return self._label(f"d{self.head_dim}")


@dataclass(frozen=True)
class MlaDecode:
    """Decode of multi-head latent attention: all heads share one latent row a key.

    With a causal mask the last of q_len tokens sees all keys, each one before it one key less.
    Shapes: q [batch, q_len, q_heads, latent_dim + rope_dim]; out [.., latent_dim];
        cache kv_len x [latent_dim + rope_dim] a request, whose first latent_dim are V too.
    Raises: ValueError naming the field, its value and what is allowed.
    """

    kv_lens: tuple[int, ...]
    q_heads: int
    latent_dim: int = 512
    rope_dim: int = 64
    q_len: int = 1
    page_size: int = 64
    dtype: str = "bf16"
    causal: bool = True

    def __post_init__(self) -> None:
        _set_lengths(self, "kv_lens")
        for field in ("q_heads", "latent_dim", "q_len", "page_size"):
            require_int(field, getattr(self, field), minimum=1)
        require_int("rope_dim", self.rope_dim)
        _check_dtype(self.dtype)

    @property
    def batch(self) -> int:
        """Number of requests."""
        return len(self.kv_lens)

    @property
    def group(self) -> int:
        """Query rows that share a latent row: the heads of all tokens."""
        return self.q_heads * self.q_len

    @property
    def kv_bytes(self) -> int:
        """Bytes of the latent cache, read once for keys and values together."""
        return sum(self.kv_lens) * (self.latent_dim + self.rope_dim) * named(self.dtype).bytes

    @property
    def bytes(self) -> int:
        """Bytes of the cache, q, out and the fp32 LSE, each moved once."""
        rows = self.batch * self.q_len * self.q_heads
        dims = 2 * self.latent_dim + self.rope_dim
        return self.kv_bytes + rows * (dims * named(self.dtype).bytes + LSE_BYTES)

    @property
    def flops(self) -> int:
        """FLOPs of the two products: 2 (latent + rope) for q K^T and 2 latent for P V."""
        return 2 * self.exps * (2 * self.latent_dim + self.rope_dim)

    @property
    def exps(self) -> int:
        """Exponentials of the softmax: one for each head of a token and key that it sees."""
        hidden = range(self.q_len) if self.causal else (0,) * self.q_len
        return sum(max(0, n - h) for n in self.kv_lens for h in hidden) * self.q_heads

    @property
    def label(self) -> str:
        """The workload in one line: "128 x 8192, 16 heads, d512+64, page 64, bf16"."""
        dims = f"d{self.latent_dim}+{self.rope_dim}"
        lengths = _lengths_label(self.kv_lens)
        heads = f"{self.q_heads} heads" + (f" x {self.q_len} tokens" if self.q_len > 1 else "")
        return f"{lengths}, {heads}, {dims}, page {self.page_size}, {self.dtype}"


def _set_lengths(workload: object, field: str) -> None:
    value = getattr(workload, field)
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise ValueError(f"{field} = {value!r}, allowed: a sequence of integers >= 0")
    lengths = tuple(require_int(f"{field}[{i}]", n) for i, n in enumerate(value))
    if not lengths:
        raise ValueError(f"{field} = {value!r}, allowed: at least one length")
    # a list is taken too, but kept as a tuple so that workloads hash and compare
    object.__setattr__(workload, field, lengths)


def _check_heads(workload: Decode | Prefill | Backward) -> None:
    for field in ("q_heads", "kv_heads", "head_dim"):
        require_int(field, getattr(workload, field), minimum=1)
    if workload.q_heads % workload.kv_heads:
        allowed = f"a multiple of kv_heads = {workload.kv_heads}"
        raise ValueError(f"q_heads = {workload.q_heads!r}, allowed: {allowed}")


def _check_dtype(dtype: str) -> None:
    if dtype not in DTYPES:
        raise ValueError(f"dtype = {dtype!r}, allowed: {', '.join(DTYPES)}")


def _lengths_label(lengths: tuple[int, ...]) -> str:
    if len(set(lengths)) == 1:
        return f"{len(lengths)} x {lengths[0]}"
    return f"ragged {len(lengths)} x <={max(lengths)}"

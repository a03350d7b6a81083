"""The workload of an MLA decode: its shapes, which are checked once, its FLOPs and its bytes."""

from dataclasses import dataclass

from labkernels.formats import named
from labkernels.kernels.workload import LSE_BYTES, Requests, check_dtype, lengths_label, set_lengths
from labkernels.units import require_int
from labkernels.variant import AttentionVariant


@dataclass(frozen=True)
class MlaDecode(Requests):
    """Decode of multi-head latent attention: all heads share one latent row per key.

    With a causal mask the last of the q_len tokens sees all keys, and each earlier token one key
    less than the next.
    Shapes: q [batch, q_len, q_heads, latent_dim + rope_dim]; out [.., latent_dim];
        cache kv_len x [latent_dim + rope_dim] per request; the first latent_dim channels are also
        V.
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
        set_lengths(self, "kv_lens")
        for field in ("q_heads", "latent_dim", "q_len", "page_size"):
            require_int(field, getattr(self, field), minimum=1)
        require_int("rope_dim", self.rope_dim)
        check_dtype(self.dtype)

    @property
    def variant(self) -> AttentionVariant:
        """Which keys a query sees."""
        return AttentionVariant(causal=self.causal)

    @property
    def group(self) -> int:
        """Query rows of a request, which share its latent rows: the heads of all tokens."""
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
        """FLOPs of q K^T and P V: 2 (latent + rope) and 2 latent per exponential."""
        return 2 * self.exps * (2 * self.latent_dim + self.rope_dim)

    @property
    def exps(self) -> int:
        """Exponentials of the softmax: one per head, query token and key that the token sees."""
        m, seen_by = self.q_len, self.variant.seen
        seen: int = sum(seen_by(query, m, n) for n in self.kv_lens for query in range(m))
        return seen * self.q_heads

    @property
    def label(self) -> str:
        """The workload in one line: "128 x 8192, 16 heads, d512+64, page 64, bf16"."""
        dims = f"d{self.latent_dim}+{self.rope_dim}"
        lengths = lengths_label(self.kv_lens)
        heads = f"{self.q_heads} heads" + (f" x {self.q_len} tokens" if self.q_len > 1 else "")
        return f"{lengths}, {heads}, {dims}, page {self.page_size}, {self.dtype}"

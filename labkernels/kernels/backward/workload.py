"""The workload of a backward pass: shapes checked once, FLOPs and bytes."""

from dataclasses import dataclass
from typing import ClassVar

from labkernels.formats import named
from labkernels.kernels.workload import LSE_BYTES, VARIANT_BYTES, Tokens


@dataclass(frozen=True)
class Backward(Tokens):
    """The gradients of a prefill: dq, dK and dV from q, K, V, out, the LSE and d_out.

    page_size: None, as in a prefill with ragged K and V.
    Shapes: as Prefill; every gradient has the shape of its tensor.
    Raises: ValueError naming the field, its value and what is allowed.
    """

    page_size: ClassVar[None] = None

    @property
    def bytes(self) -> int:
        """Bytes of q, out, d_out, dq, K, V, dK, dV, the fp32 LSE, slopes, sinks and the gradient of
        the sinks, each moved once.
        """
        (q_rows, kv_rows), written = self._rows(), sum(self.kv_lens) * self.kv_heads
        channels = (2 * q_rows + kv_rows + written) * (self.head_dim + self.head_dim_v)
        sinks = self.variant.sinks * VARIANT_BYTES * self.q_heads
        return channels * named(self.dtype).bytes + q_rows * LSE_BYTES + self.variant_bytes + sinks

    @property
    def flops(self) -> int:
        """FLOPs of the five products, three of which are as wide as q, and two as V.

        They are 2.5 times the forward's if q and V have as many channels.
        """
        channels = 3 * self.head_dim + 2 * self.head_dim_v
        return self._doubled_pairs() * self.q_heads * channels

    @property
    def label(self) -> str:
        """The workload in one line, as a prefill's."""
        return self._label()

"""FlashInfer's ragged prefill test: its shapes, and the inputs on which it can or cannot fail."""

import itertools
import math
from dataclasses import dataclass, replace

from labkernels.kernels.random_inputs import ExactNormal
from labkernels.numerics.truth.problem import Problem

# As it stood in February 2025 (its K all zeros), since then (V too), and as it might be.
INPUTS = ("K = 0", "K = V = 0", "random")
_GITHUB = "https://github.com/flashinfer-ai/flashinfer/"
SOURCE = f"{_GITHUB}blob/main/tests/attention/test_deepseek_mla.py"


@dataclass(frozen=True)
class RaggedTest:
    """Requests of one length each, one behind the other; 192 channels of Q and K, 128 of V.

    The defaults are a shape of the test.
    """

    causal: bool
    dtype: str
    batch: int = 12
    q_len: int = 377
    kv_len: int = 544
    heads: int = 4
    head_dim: int = 192
    head_dim_v: int = 128

    def of_length(self, kv_len: int, q_len: int = 37) -> "RaggedTest":
        """The same test on two requests of some keys, which a laptop's CPU build runs at once."""
        return replace(self, batch=2, q_len=min(q_len, kv_len), kv_len=kv_len)


@dataclass(frozen=True, eq=False)
class Drawn:
    """Tensors of a test, as `ops.prefill` takes them, and the float64 problem they pose.

    Shapes: q [batch * q_len, heads, 192]; kv a RaggedKV; cu_seqlens_q [batch + 1]
    """

    test: RaggedTest
    q: object
    kv: object
    cu_seqlens_q: object
    scale: float

    @property
    def dtype(self) -> str:
        """The format of q, K and V."""
        return self.test.dtype

    def problem(self) -> Problem:
        """The same inputs in float64."""
        arrays = (x.double().cpu().numpy() for x in (self.q, self.kv.k, self.kv.v))
        return Problem.packed(
            *arrays,
            self.kv.cu_seqlens.cpu().numpy(),
            scale=self.scale,
            cu_seqlens_q=self.cu_seqlens_q.cpu().numpy(),
            causal=self.test.causal,
        )


def draw(test: RaggedTest, inputs: str, *, seed: int, device: str = "cpu") -> Drawn:
    """Return nearly normal inputs, the same on every machine; `inputs` says which are zero.

    Raises: ValueError naming the inputs there are.
    """
    import torch

    from labkernels.kernels.caches.ragged import RaggedKV

    if inputs not in INPUTS:
        raise ValueError(f"inputs = {inputs!r}, allowed: {', '.join(INPUTS)}")
    source = ExactNormal(seed, device)
    q = source.tensor(test.dtype, test.batch * test.q_len, test.heads, test.head_dim)
    k = source.tensor(test.dtype, test.batch * test.kv_len, test.heads, test.head_dim)
    v = source.tensor(test.dtype, test.batch * test.kv_len, test.heads, test.head_dim_v)
    if inputs != "random":
        k.zero_()
    if inputs == "K = V = 0":
        v.zero_()
    ends = [
        torch.tensor([0, *itertools.accumulate([n] * test.batch)], dtype=torch.int32).to(device)
        for n in (test.q_len, test.kv_len)
    ]
    scale = 1 / math.sqrt(test.head_dim)
    return Drawn(test, q, RaggedKV(k, v, ends[1]), ends[0], scale)

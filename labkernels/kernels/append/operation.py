"""The operation append: new keys and values after the last key of each request in a cache."""

from typing import Any, NamedTuple

import torch

from labkernels.kernels.append.api import append_step
from labkernels.kernels.append.inputs import AppendInputs, append_inputs
from labkernels.kernels.append.workload import Append
from labkernels.kernels.call import Step
from labkernels.kernels.operation import Operation


class Pools(NamedTuple):
    """The pools that an append writes. Shapes: k, v [pages, page_size, kv_heads, head_dim]."""

    k: torch.Tensor
    v: torch.Tensor


def step(inputs: AppendInputs, *, policy: Any = None, **options) -> Step[Pools]:
    """Return a step whose runs all start from the lengths before the first; it needs no policy."""
    step, pools = append_step(*inputs.arguments, **options), Pools(*inputs.cache.pools)
    before = inputs.cache.kv_len.clone()

    def run() -> None:
        inputs.cache.kv_len.copy_(before)
        step.run()

    return Step(run, lambda: pools, step.plan)


# No checksums: tests compare what an append copies or rounds with the only right bits.
OPERATION = Operation("append", Append, append_inputs, step, bit_cases=lambda kernel: ())

"""The operation decode: one query token per request over a paged cache."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from labkernels.kernels.call import Step
from labkernels.kernels.cuda_kernel import CudaKernel
from labkernels.kernels.decode.api import decode_step
from labkernels.kernels.decode.inputs import DecodeInputs, decode_inputs
from labkernels.kernels.decode.workload import Decode
from labkernels.kernels.operation import BitCase, Operation
from labkernels.kernels.workload import KV_DTYPES
from labkernels.policy import NumericPolicy

LENGTHS = (0, 1, 17, 64, 129, 200, 300, 513)
KV_HEADS, PAGE_SIZE = 8, 16
SHAPES = ((64, 4), (128, 1), (128, 4), (128, 7), (128, 16), (256, 4))  # head_dim, group
COSTLY_SHAPE = (128, 4)  # shape for the policy with every switch that the default policy lacks
SPLITS = (1024, 128)  # keys per split: one split, and several with empty ones


def step(inputs: DecodeInputs, **options) -> Step:
    """Return the step on the inputs."""
    return decode_step(*inputs.arguments, scale=inputs.scale, **inputs.options, **options)


def bit_cases(kernel: CudaKernel) -> Iterator[BitCase]:
    """Yield every dtype and shape, by default and with fp32 output and FMA exponentials.

    One shape also has P in two parts, l as the sum of rounded P, promoted sums and fp32 output.
    Caches of 8 bits, with scales of heads and of pages, have the default policy.
    """
    chosen = [kernel.policies[0]]
    chosen += [p for p in kernel.policies if (p.out, p.exp2) == ("fp32", "poly5")][:1]
    costly = NumericPolicy("input_x2", "rounded", accumulate="promoted", out="fp32")
    for dtype in kernel.dtypes:
        for head_dim, group in SHAPES:
            workload = Decode(LENGTHS, KV_HEADS * group, KV_HEADS, head_dim, PAGE_SIZE, dtype)
            here = (head_dim, group) == COSTLY_SHAPE and costly in kernel.policies
            for policy in [*chosen, costly] if here else chosen:
                instance = kernel.instance(
                    kernel.shape(dtype=dtype, head_dim=head_dim, group=group), policy
                )
                for keys in SPLITS:
                    yield BitCase(instance, workload, {"keys_per_split": keys})
            for kv_dtype, scaled in product(KV_DTYPES, (None, PAGE_SIZE)):
                narrow = replace(workload, kv_dtype=kv_dtype, keys_per_scale=scaled)
                cache = {"kv_dtype": kv_dtype, "of_blocks": scaled is not None}
                shape = kernel.shape(dtype=dtype, head_dim=head_dim, group=group, **cache)
                if kernel.refuses(shape) is None:
                    yield BitCase(kernel.instance(shape), narrow, {"keys_per_split": SPLITS[-1]})


OPERATION = Operation("decode", Decode, decode_inputs, step, bit_cases)

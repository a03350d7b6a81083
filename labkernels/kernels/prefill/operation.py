"""The operation prefill: many query tokens per request, over ragged or paged K and V.

PREFILL_FP8 is the operation whose q, K and V are codes of 8 bits.
"""

from collections.abc import Iterator
from itertools import product

from labkernels.kernels.call import Step
from labkernels.kernels.cuda_kernel import CudaKernel
from labkernels.kernels.kernel import Instance
from labkernels.kernels.operation import BitCase, Operation
from labkernels.kernels.prefill import fp8
from labkernels.kernels.prefill.api import prefill_step
from labkernels.kernels.prefill.inputs import PrefillInputs, prefill_inputs
from labkernels.kernels.prefill.workload import Prefill

Q_LENS = (1, 37, 0, 70, 150)
KV_LENS = (130, 37, 20, 0, 333)
KV_HEADS, GROUP, PAGE_SIZE = 2, 3, 16
SPLITS = (1024, 128)  # keys per split: one split, and several


def step(inputs: PrefillInputs, **options) -> Step:
    """Return the step on the inputs, prepared with the lengths of the workload."""
    w = inputs.workload
    lengths = {"q_lens": w.q_lens, "kv_lens": w.kv_lens}
    how = {"causal": inputs.variant.causal, "scale": inputs.scale, **lengths}
    return prefill_step(*inputs.arguments, **how, **inputs.options, **options)


def bit_cases(kernel: CudaKernel) -> Iterator[BitCase]:
    """Yield every tile in bf16, the preferred ones also in fp16; ragged and paged in turn.

    The mask and the splits also change from case to case. In 8 bits, policies have their own tiles.
    """
    for number, instance in enumerate(_instances(kernel)):
        workload = Prefill(
            Q_LENS,
            KV_LENS,
            KV_HEADS * GROUP,
            KV_HEADS,
            instance.head_dim,
            causal=number % 4 < 2,
            dtype=instance.dtype,
            head_dim_v=instance.head_dim_v,
            page_size=PAGE_SIZE if instance.layout == "paged" else None,
        )
        yield BitCase(instance, workload, {"keys_per_split": SPLITS[number % 3 == 0]})


def _instances(kernel: CudaKernel) -> Iterator[Instance]:
    policies = kernel.policies[:1]
    if kernel.operation == PREFILL_FP8.name:
        policies = tuple(policy for policy in kernel.policies if policy.out == "input")
    for head_dim in kernel.head_dims:
        sizes = {"head_dim": head_dim, "rows": GROUP * max(Q_LENS)}
        every = {}
        for dtype, layout in product(("bf16", "fp16"), kernel.layouts):
            shape = kernel.shape(dtype=dtype, layout=layout, **sizes)
            every[dtype, layout] = [i for p in policies for i in kernel.instances(shape, p)]
        for number in range(len(every["bf16", "ragged"])):
            yield every["bf16", kernel.layouts[number % len(kernel.layouts)]][number]
        for layout in kernel.layouts:
            yield every["fp16", layout][0]


OPERATION = Operation("prefill", Prefill, prefill_inputs, step, bit_cases)
PREFILL_FP8 = Operation("prefill_fp8", Prefill, fp8.inputs_of, fp8.step_of, bit_cases)

"""The operation MLA decode: a few query tokens per request over latent rows."""

from collections.abc import Iterator

from labkernels.kernels.call import Step
from labkernels.kernels.cuda_kernel import CudaKernel
from labkernels.kernels.mla.api import mla_decode_step
from labkernels.kernels.mla.inputs import MlaInputs, mla_inputs
from labkernels.kernels.mla.workload import MlaDecode
from labkernels.kernels.operation import BitCase, Operation

KV_LENS = (130, 0, 37, 333)
HEADS = (17, 40)  # head counts in turn; neither fills whole tiles
HEAD_DIM, Q_LEN, PAGE_SIZES = 576, 3, (16, 1, 64)
SPLITS = (1024, 128)  # keys per split: one split, and several


def step(inputs: MlaInputs, **options) -> Step:
    """Return the step on the inputs, prepared with the lengths of the workload."""
    w = inputs.workload
    lengths = {"q_lens": (w.q_len,) * w.batch, "kv_lens": w.kv_lens}
    how = {"causal": inputs.variant.causal, "scale": inputs.scale, **lengths}
    return mla_decode_step(*inputs.arguments, **how, **options)


def bit_cases(kernel: CudaKernel) -> Iterator[BitCase]:
    """Yield every tile in bf16 and fp16, with other heads, pages, mask and splits each time."""
    sizes = {"head_dim": HEAD_DIM, "rows": Q_LEN * max(HEADS)}
    for dtype in ("bf16", "fp16"):
        for number, instance in enumerate(kernel.instances(kernel.shape(dtype=dtype, **sizes))):
            workload = MlaDecode(
                KV_LENS,
                HEADS[number % 2],
                q_len=Q_LEN,
                page_size=PAGE_SIZES[number % 3],
                dtype=dtype,
                causal=number % 4 < 2,
            )
            yield BitCase(instance, workload, {"keys_per_split": SPLITS[number % 3 == 0]})


OPERATION = Operation("mla", MlaDecode, mla_inputs, step, bit_cases)

"""The operation backward: the gradients of a prefill over ragged K and V."""

from collections.abc import Iterator

from labkernels.kernels.backward.api import backward_step
from labkernels.kernels.backward.inputs import BackwardInputs, backward_inputs
from labkernels.kernels.backward.workload import Backward
from labkernels.kernels.cuda_kernel import CudaKernel
from labkernels.kernels.kernel import Instance
from labkernels.kernels.operation import BitCase, Operation
from labkernels.kernels.prefill.operation import GROUP, KV_HEADS, KV_LENS, Q_LENS


def step(inputs: BackwardInputs, **options):
    """Return the step on the inputs, prepared with the lengths of the workload."""
    w = inputs.workload
    lengths = {"q_lens": w.q_lens, "kv_lens": w.kv_lens}
    how = {"causal": inputs.variant.causal, "scale": inputs.scale, **lengths}
    how |= inputs.forward.options
    return backward_step(*inputs.arguments, **how, **options)


def bit_cases(kernel: CudaKernel) -> Iterator[BitCase]:
    """Yield every ordered tile in bf16, the preferred ones in fp16; every second case is causal."""
    for number, instance in enumerate(_instances(kernel)):
        workload = Backward(
            Q_LENS,
            KV_LENS,
            KV_HEADS * GROUP,
            KV_HEADS,
            instance.head_dim,
            causal=number % 2 == 0,
            dtype=instance.dtype,
            head_dim_v=instance.head_dim_v,
        )
        yield BitCase(instance, workload, {"deterministic": True})


def _instances(kernel: CudaKernel) -> Iterator[Instance]:
    for head_dim in kernel.head_dims:
        for dtype in ("bf16", "fp16"):
            every = kernel.instances(kernel.shape(dtype=dtype, head_dim=head_dim))
            ordered = [instance for instance in every if instance.tile.dq == "ordered"]
            yield from ordered if dtype == "bf16" else ordered[:1]


OPERATION = Operation("backward", Backward, backward_inputs, step, bit_cases)

"""On a real GPU, kernels have the registers, shared memory and blocks that plans count on."""

import pytest

torch = pytest.importorskip("torch")

from labkernels import ops  # noqa: E402
from labkernels.cuda.gpu import device  # noqa: E402
from labkernels.measure import resources  # noqa: E402
from tests.kernels.contract import CUDA  # noqa: E402
from tests.kernels.decode.cases import decode_case  # noqa: E402

pytestmark = pytest.mark.gpu

WITH_LEDGERS = [name for name, spec in resources.cuda_kernels().items() if spec.smem]


@pytest.mark.parametrize("kernel", WITH_LEDGERS)
def test_occupancy_is_the_formulas(kernel):
    gpu, spec = device.planning_gpu(0), resources.find(kernel)
    for instance in resources.all_instances([kernel]):
        if instance.dtype == "bf16" and spec.fits(instance, gpu):
            predicted = resources.resources(instance, gpu=gpu)
            found = resources.loaded(instance, arch=gpu.compile_arch)
            assert found.registers == predicted.compiled.registers
            assert found.smem_bytes == predicted.smem.total
            assert (found.local_bytes > 0) == (predicted.compiled.spill_bytes > 0)
            assert found.blocks_per_sm == predicted.occupancy.blocks_per_sm >= 1, instance


@pytest.mark.parametrize("kernel", CUDA)
def test_the_plan_counts_on_blocks_that_the_driver_places(kernel):
    for head_dim in (64, 128, 256):
        case = decode_case((100,), head_dim=head_dim, device="cuda")
        plan = ops.decode_step(case.q, case.cache, kernel=kernel).plan
        instance = next(
            instance
            for instance in resources.all_instances([kernel])
            if instance.tile.label == plan.tile
            and (instance.head_dim, instance.dtype) == (head_dim, "fp16")
            and instance.rows == CUDA[kernel].rows(4)
        )
        found = resources.loaded(instance, arch=device.planning_gpu(0).compile_arch)
        assert plan.blocks_per_sm <= found.blocks_per_sm
        assert plan.registers == found.registers

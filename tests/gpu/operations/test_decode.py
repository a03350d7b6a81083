"""Decode steps on a real GPU have the same bits every time, in graphs and in large pools."""

import pytest

torch = pytest.importorskip("torch")

from labkernels import ops  # noqa: E402
from labkernels.cuda.gpu import device  # noqa: E402
from labkernels.kernels.caches.paged import PagedKV  # noqa: E402
from labkernels.measure import resources  # noqa: E402
from tests.gpu.operations.steps import (  # noqa: E402
    assert_gives,
    assert_same,
    at_the_top,
    captured,
)
from tests.kernels.contract import (  # noqa: E402
    CUDA,
    RAGGED,
)
from tests.kernels.decode.cases import (  # noqa: E402
    bits,
    decode_case,
)

pytestmark = pytest.mark.gpu

GPU_KERNELS = [*CUDA, "triton_decode"]
WITH_LEDGERS = [name for name, spec in resources.cuda_kernels().items() if spec.smem]
every_gpu_kernel = pytest.mark.parametrize("kernel", GPU_KERNELS)
RUNS = 100


@every_gpu_kernel
@pytest.mark.parametrize("keys_per_split", [None, 64])
def test_every_run_gives_the_same_bits(kernel, keys_per_split):
    case = decode_case((1000, 3, 0, 700, 64), group=8, head_dim=128, device="cuda")
    options = {"kernel": kernel, "keys_per_split": keys_per_split}
    first = ops.decode(case.q, case.cache, **options)
    step = ops.decode_step(case.q, case.cache, **options)
    for _ in range(RUNS):
        assert_gives(step.run, step, first)


@every_gpu_kernel
def test_the_rest_of_the_batch_changes_nothing(kernel):
    case = decode_case(RAGGED, head_dim=128, dtype="bf16", device="cuda")
    cache = case.cache
    together = ops.decode(case.q, cache, kernel=kernel, keys_per_split=128)
    for i in range(cache.batch):
        alone = PagedKV(cache.k, cache.v, cache.page_table[i : i + 1], cache.kv_len[i : i + 1])
        single = ops.decode(case.q[i : i + 1], alone, kernel=kernel, keys_per_split=128)
        assert torch.equal(bits(single.out[0]), bits(together.out[i]))
        assert torch.equal(bits(single.lse2[0]), bits(together.lse2[i]))


@every_gpu_kernel
@pytest.mark.parametrize("keys_per_split", [10_000, 64], ids=["unsplit", "split"])
def test_a_graph_follows_lengths_and_pages(kernel, keys_per_split):
    case = decode_case((900, 900, 900), head_dim=128, device="cuda")
    cache = case.cache
    moving = PagedKV(cache.k, cache.v, cache.page_table.clone(), cache.kv_len.clone())
    options = {"kernel": kernel, "keys_per_split": keys_per_split}
    step = ops.decode_step(case.q, moving, **options)
    graph = captured(step)
    for lengths, order in (
        ((900, 900, 900), [0, 1, 2]),
        ((0, 1, 900), [2, 1, 0]),
        ((65, 64, 63), [1, 1, 0]),
        ((0, 0, 0), [0, 1, 2]),
    ):
        moving.kv_len.copy_(torch.tensor(lengths))
        moving.page_table.copy_(cache.page_table[order])
        assert_gives(graph.replay, step, ops.decode(case.q, moving, **options))


@every_gpu_kernel
def test_a_request_at_the_top_of_a_large_pool(kernel):
    case = decode_case(
        (1000, 5, 300), kv_heads=8, head_dim=128, page_size=64, dtype="bf16", device="cuda"
    )
    small = case.cache
    pools, table = at_the_top([small.k, small.v], small.page_table)
    for keys_per_split in (None, 128):
        options = {"kernel": kernel, "keys_per_split": keys_per_split}
        found = ops.decode(case.q, PagedKV(*pools, table, small.kv_len), **options)
        assert_same(found, ops.decode(case.q, small, **options))


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

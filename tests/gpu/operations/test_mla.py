"""MLA kernels keep their contract on a real GPU, with the bits of the CPU build."""

import random

import pytest

torch = pytest.importorskip("torch")

from labkernels import ops  # noqa: E402
from labkernels.cuda.gpu import device  # noqa: E402
from labkernels.kernels.caches.latent import LatentKV  # noqa: E402
from tests.gpu.operations.steps import (  # noqa: E402
    assert_gives,
    assert_same,
    at_the_top,
    captured,
)
from tests.kernels.contract import (  # noqa: E402
    CUDA_MLAS,
    MLAS,
    run_checked,
)
from tests.kernels.decode.cases import (  # noqa: E402
    LAYOUTS,
    bits,
)
from tests.kernels.mla.cases import mla_case  # noqa: E402

pytestmark = pytest.mark.gpu

GPU_KERNELS = [name for name, spec in MLAS.items() if spec.language != "torch"]
every_kernel = pytest.mark.parametrize("kernel", GPU_KERNELS)
Q_LENS = (0, 1, 2, 4, 3, 4, 1, 2)
KV_LENS = (5, 0, 1, 3, 64, 150, 17, 1000)
CUTS = ({}, {"splits": 1}, {"splits": 3}, {"keys_per_split": 100})


@every_kernel
@pytest.mark.parametrize("heads", [1, 3, 16, 33, 64, 127, 128])
def test_every_number_of_heads(kernel, heads):
    for dtype, causal in (("bf16", True), ("fp16", False)):
        layout = LAYOUTS[heads % 4]
        case = mla_case(
            Q_LENS, KV_LENS, heads=heads, causal=causal, layout=layout, dtype=dtype, device="cuda"
        )
        for cut in CUTS:
            run_checked(case, kernel, **cut)


@every_kernel
def test_every_tile_and_policy(kernel):
    spec = MLAS[kernel]
    for dtype in ("fp16", "bf16"):
        case = mla_case(Q_LENS, KV_LENS, heads=40, dtype=dtype, page_size=3, device="cuda")
        for tile in spec.tiles(spec.shape(head_dim=576), spec.policies[0]):
            run_checked(case, kernel, tile=tile.label, keys_per_split=300)
        for policy in spec.policies:
            run_checked(case, kernel, policy=policy)


@every_kernel
@pytest.mark.parametrize("page_size", [1, 3, 16, 64, 256])
def test_every_page_size_and_layout(kernel, page_size):
    for layout in LAYOUTS:
        case = mla_case(Q_LENS, KV_LENS, page_size=page_size, layout=layout, device="cuda")
        run_checked(case, kernel)


def test_float64_reference():
    run_checked(mla_case(Q_LENS, KV_LENS, device="cuda"), "reference_mla", sharp=False)


@every_kernel
@pytest.mark.parametrize("cut", [{"splits": 1}, {"keys_per_split": 96}], ids=["unsplit", "split"])
def test_every_run_gives_the_same_bits_and_a_graph_too(kernel, cut):
    case = mla_case((2, 1, 0, 4), (1000, 700, 3, 70), heads=33, device="cuda")
    kv = LatentKV(case.kv.ckv, case.kv.kpe, case.kv.page_table.clone(), case.kv.kv_len)
    inputs, options = (case.q_nope, case.q_pe, kv, case.cu_seqlens_q), {"kernel": kernel, **cut}
    step = ops.mla_decode_step(*inputs, **options)
    graph = captured(step)
    for order in ([0, 1, 2, 3], [0, 0, 2, 3], [0, 1, 2, 3]):
        kv.page_table.copy_(case.kv.page_table[order])
        fresh = ops.mla_decode(*inputs, **options)
        for run in [step.run] * 10 + [graph.replay] * 10:
            assert_gives(run, step, fresh)


@every_kernel
def test_a_request_at_the_top_of_a_large_pool(kernel):
    """In pools of more than 2^31 elements, the offsets of the last pages need 64 bits."""
    case = mla_case((2, 1), (300, 5), heads=16, page_size=64, device="cuda")
    small = case.kv
    pools, table = at_the_top([small.ckv, small.kpe], small.page_table)
    large = case.changed(kv=LatentKV(*pools, table, small.kv_len))
    for cut in ({"splits": 1}, {"keys_per_split": 100}):
        assert_same(case.run(kernel, **cut), large.run(kernel, **cut))


@pytest.mark.parametrize("kernel", CUDA_MLAS)
def test_every_bit_is_the_cpu_builds(kernel):
    gpu = device.planning_gpu(0)
    if gpu.arch != "sm_90":
        pytest.skip(f"ex2.approx is known of sm_90, this GPU is {gpu.arch}")
    spec, draw = CUDA_MLAS[kernel], random.Random(kernel)
    for turn, tile in enumerate(spec.tiles(spec.shape(head_dim=576), spec.policies[0])):
        lengths = [(draw.randint(0, 4), draw.randint(0, 300)) for _ in range(5)]
        shape = {
            "causal": draw.random() < 0.7,
            "heads": draw.choice((3, 16, 50)),
            "page_size": draw.choice((1, 3, 16, 64)),
            "layout": "padded",
            "dtype": ("fp16", "bf16")[turn % 2],
        }
        options = {"tile": tile.label, "keys_per_split": draw.choice((64, 100, 1000))}
        here, there = (
            mla_case(*zip(*lengths, strict=True), **shape, device=name) for name in ("cpu", "cuda")
        )
        found, expected = there.run(kernel, **options), here.run(kernel, **options)
        assert torch.equal(bits(found.out.cpu()), bits(expected.out)), (shape, options)
        assert torch.equal(bits(found.lse2.cpu()), bits(expected.lse2)), (shape, options)

"""Prefill kernels keep their contract on a real GPU, with the bits of the CPU build."""

import random
from itertools import product

import pytest

torch = pytest.importorskip("torch")

from labkernels import ops  # noqa: E402
from labkernels.cuda.gpu import device  # noqa: E402
from labkernels.kernels.caches.paged import PagedKV  # noqa: E402
from tests.gpu.operations.steps import (  # noqa: E402
    assert_gives,
    assert_same,
    at_the_top,
    captured,
)
from tests.kernels.contract import (  # noqa: E402
    CUDA_PREFILLS,
    PREFILLS,
    run_checked,
)
from tests.kernels.decode.cases import (  # noqa: E402
    LAYOUTS,
    bits,
)
from tests.kernels.prefill.cases import (  # noqa: E402
    RAGGED_LAYOUTS,
    prefill_case,
    sums,
)

pytestmark = pytest.mark.gpu

GPU_KERNELS = [name for name, spec in PREFILLS.items() if spec.language != "torch"]
PAGED_KERNELS = [name for name in GPU_KERNELS if "paged" in PREFILLS[name].layouts]
every_kernel = pytest.mark.parametrize("kernel", GPU_KERNELS)
every_paged_kernel = pytest.mark.parametrize("kernel", PAGED_KERNELS)
Q_LENS = (0, 1, 15, 16, 17, 150, 129, 20)
KV_LENS = (5, 1, 0, 16, 150, 400, 129, 7)
CUTS = ({}, {"splits": 1}, {"splits": 3}, {"keys_per_split": 100})


@every_kernel
@pytest.mark.parametrize(
    ("group", "dtype"),
    [(1, "fp16"), (1, "bf16"), (2, "fp16"), (3, "bf16"), (5, "fp16"), (8, "bf16"), (16, "fp16")],
)
def test_every_group(kernel, group, dtype):
    for causal, cuts in ((False, CUTS[:2]), (True, CUTS[2:])):
        case = prefill_case(
            Q_LENS,
            KV_LENS,
            causal=causal,
            group=group,
            head_dim=128,
            layout=RAGGED_LAYOUTS[group % len(RAGGED_LAYOUTS)],
            dtype=dtype,
            device="cuda",
        )
        for cut in cuts:
            run_checked(case, kernel, **cut)


@every_kernel
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("page_size", [None, 16], ids=["ragged", "paged"])
def test_every_tile(kernel, dtype, page_size):
    spec = PREFILLS[kernel]
    if page_size is not None and "paged" not in spec.layouts:
        pytest.skip(f"{kernel} takes {' and '.join(spec.layouts)} K and V")
    for head_dim in spec.head_dims:
        case = prefill_case(
            Q_LENS,
            KV_LENS,
            head_dim=head_dim,
            dtype=dtype,
            page_size=page_size,
            layout="padded",
            device="cuda",
        )
        shape = spec.shape(head_dim=head_dim, layout="paged" if page_size else "ragged")
        for tile in spec.tiles(shape, spec.policies[0]):
            run_checked(case, kernel, tile=tile.label, keys_per_split=300)


@every_kernel
def test_every_policy(kernel):
    case = prefill_case((1, 40, 200), (900, 400, 200), group=4, seed=11, device="cuda")
    for policy in PREFILLS[kernel].policies:
        run_checked(case, kernel, policy=policy, keys_per_split=300)


@every_paged_kernel
@pytest.mark.parametrize("page_size", [1, 3, 16, 64, 256])
def test_every_page_size_and_layout(kernel, page_size):
    for layout in LAYOUTS:
        case = prefill_case(
            Q_LENS[:5], KV_LENS[:5], page_size=page_size, layout=layout, dtype="bf16", device="cuda"
        )
        run_checked(case, kernel)


@every_kernel
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_lengths_around_a_tile_and_a_step(kernel, causal):
    lengths = (1, 15, 16, 17, 63, 64, 65, 127, 128, 129, 255, 256, 257)
    for keys in (lengths, lengths[::-1], (64,) * len(lengths), (257,) * len(lengths)):
        case = prefill_case(lengths, keys, causal=causal, group=1, device="cuda")
        run_checked(case, kernel, splits=1)


def test_float64_reference():
    case = prefill_case(Q_LENS, KV_LENS, dtype="bf16", device="cuda")
    run_checked(case, "reference_prefill", sharp=False)


@every_paged_kernel
@pytest.mark.parametrize("cut", [{"splits": 1}, {"keys_per_split": 96}], ids=["unsplit", "split"])
def test_every_run_gives_the_same_bits_and_a_graph_too(kernel, cut):
    case = prefill_case(
        (300, 1, 0, 70), (1000, 700, 3, 70), page_size=16, layout="nhd", device="cuda"
    )
    kv = PagedKV(case.kv.k, case.kv.v, case.kv.page_table.clone(), case.kv.kv_len)
    options = {"kernel": kernel, "causal": True, **cut}
    step = ops.prefill_step(case.q, kv, case.cu_seqlens_q, **options)
    graph = captured(step)
    for order in ([0, 1, 2, 3], [0, 0, 2, 3], [0, 1, 2, 3]):
        kv.page_table.copy_(case.kv.page_table[order])
        fresh = ops.prefill(case.q, kv, case.cu_seqlens_q, **options)
        for run in [step.run] * 10 + [graph.replay] * 10:
            assert_gives(run, step, fresh)


@every_paged_kernel
def test_the_rest_of_the_batch_changes_nothing(kernel):
    case = prefill_case(Q_LENS, KV_LENS, page_size=16, layout="nhd", device="cuda")
    spec, kv, ends = PREFILLS[kernel], case.kv, sums(Q_LENS).tolist()
    options = {"kernel": kernel, "causal": True, "keys_per_split": 128}
    options["tile"] = spec.tiles(spec.shape(head_dim=64), spec.policies[0])[0].label
    together = ops.prefill(case.q, kv, case.cu_seqlens_q, **options)
    for i, n in enumerate(Q_LENS):
        tokens = slice(ends[i], ends[i + 1])
        one = PagedKV(kv.k, kv.v, kv.page_table[i : i + 1], kv.kv_len[i : i + 1])
        alone = ops.prefill(case.q[tokens], one, sums((n,), "cuda"), **options)
        assert torch.equal(bits(alone.out), bits(together.out[tokens]))
        assert torch.equal(bits(alone.lse2), bits(together.lse2[tokens]))


@every_paged_kernel
def test_a_request_at_the_top_of_a_large_pool(kernel):
    """In pools of more than 2^31 elements, the offsets of the last pages need 64 bits."""
    case = prefill_case(
        (70, 5), (300, 5), head_dim=128, page_size=64, layout="nhd", dtype="bf16", device="cuda"
    )
    small = case.kv
    pools, table = at_the_top([small.k, small.v], small.page_table)
    large = case.changed(kv=PagedKV(*pools, table, small.kv_len))
    for cut in ({"splits": 1}, {"keys_per_split": 100}):
        assert_same(case.run(kernel, **cut), large.run(kernel, **cut))


@pytest.mark.parametrize("kernel", CUDA_PREFILLS)
def test_every_bit_is_the_cpu_builds(kernel):
    gpu = device.planning_gpu(0)
    if gpu.arch != "sm_90":
        pytest.skip(f"ex2.approx is known of sm_90, this GPU is {gpu.arch}")
    spec, draw, outputs = CUDA_PREFILLS[kernel], random.Random(kernel), 0
    for head_dim, layout in product(spec.head_dims, spec.layouts):
        tiles = spec.tiles(spec.shape(head_dim=head_dim, layout=layout), spec.policies[0])
        for turn, tile in enumerate(tiles):
            lengths = [(draw.randint(0, 90), draw.randint(0, 200)) for _ in range(5)]
            shape = {
                "causal": draw.random() < 0.7,
                "group": draw.choice((1, 3, 8)),
                "head_dim": head_dim,
                "page_size": draw.choice((3, 16)) if layout == "paged" else None,
                "layout": "padded",
                "dtype": ("fp16", "bf16")[turn % 2],
            }
            options = {"tile": tile.label, "keys_per_split": draw.choice((64, 100, 1000))}
            here, there = (
                prefill_case(*zip(*lengths, strict=True), **shape, device=name)
                for name in ("cpu", "cuda")
            )
            found, expected = there.run(kernel, **options), here.run(kernel, **options)
            assert torch.equal(bits(found.out.cpu()), bits(expected.out)), (shape, options)
            assert torch.equal(bits(found.lse2.cpu()), bits(expected.lse2)), (shape, options)
            outputs += found.out.numel()
    assert outputs >= 200_000 * len(spec.head_dims) * len(spec.layouts)

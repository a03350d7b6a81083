"""Backward kernels keep their contract on a real GPU, with the bits of the CPU build."""

import pytest

torch = pytest.importorskip("torch")

from tests.cuda import machines  # noqa: E402
from tests.cuda.host import test_words as words  # noqa: E402
from tests.kernels.backward.cases import (  # noqa: E402
    BACKWARDS,
    CUDA_BACKWARDS,
    GRADIENTS,
    backward_case,
    run_checked,
)
from tests.kernels.decode.cases import bits  # noqa: E402
from tests.kernels.prefill.cases import RAGGED_LAYOUTS  # noqa: E402

pytestmark = pytest.mark.gpu

every_kernel = pytest.mark.parametrize("kernel", BACKWARDS)
either_order = pytest.mark.parametrize("deterministic", [False, True], ids=["atomic", "ordered"])
Q_LENS = (0, 1, 15, 16, 17, 150, 129, 20)
KV_LENS = (5, 1, 0, 16, 150, 400, 129, 7)
RUNS = 1000


def gradients(step):
    return [bits(getattr(step, name)).clone() for name in GRADIENTS]


@pytest.mark.parametrize("blocks", [1, 2])
def test_four_floats_are_added_to_global_memory(blocks):
    words.check_add_global(machines.gpu_of_sm90(), blocks)


@every_kernel
@pytest.mark.parametrize("group", [1, 2, 3, 5, 7, 8, 16])
def test_every_group(kernel, group):
    layout = RAGGED_LAYOUTS[group % len(RAGGED_LAYOUTS)]
    for causal in (False, True):
        case = backward_case(
            Q_LENS,
            KV_LENS,
            causal=causal,
            group=group,
            head_dim=128,
            layout=layout,
            dtype=("fp16", "bf16")[group % 2],
            device="cuda",
        )
        for deterministic in (False, True):
            run_checked(case, kernel, deterministic=deterministic)


@every_kernel
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_every_tile(kernel, dtype):
    spec = BACKWARDS[kernel]
    for head_dim in spec.head_dims:
        for causal in (False, True):
            case = backward_case(
                (700, 3, 129),
                (1000, 3, 129),
                causal=causal,
                head_dim=head_dim,
                dtype=dtype,
                layout="padded",
                device="cuda",
            )
            for tile in spec.tiles(spec.shape(head_dim=head_dim), spec.policies[0]):
                run_checked(case, kernel, tile=tile.label)


@every_kernel
def test_every_policy(kernel):
    case = backward_case((1, 40, 200), (900, 400, 200), group=4, seed=11, device="cuda")
    for policy in BACKWARDS[kernel].policies:
        run_checked(case, kernel, policy=policy)


@every_kernel
@either_order
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_lengths_around_a_tile_and_a_step(kernel, causal, deterministic):
    lengths = (1, 15, 16, 17, 63, 64, 65, 127, 128, 129, 255, 256, 257)
    for keys in (lengths, lengths[::-1], (64,) * len(lengths), (257,) * len(lengths)):
        case = backward_case(lengths, keys, causal=causal, group=1, device="cuda")
        run_checked(case, kernel, deterministic=deterministic)


@every_kernel
def test_long_rows(kernel):
    case = backward_case(
        (4096,), (4096,), group=1, kv_heads=2, head_dim=128, dtype="bf16", device="cuda"
    )
    for deterministic in (False, True):
        run_checked(case, kernel, deterministic=deterministic)


@pytest.mark.parametrize("kernel", CUDA_BACKWARDS)
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_an_ordered_pass_has_the_bits_of_the_cpu_build(kernel, head_dim):
    how = {"head_dim": head_dim, "dtype": "bf16", "group": 3, "kv_heads": 1, "causal": True}
    lengths = (1, 17, 150, 0), (30, 17, 130, 9)
    on_cpu = backward_case(*lengths, **how)
    # the GPU's float64 may round out and lse2 the other way
    same = {"out": on_cpu.out.cuda(), "lse2": on_cpu.lse2.cuda()}
    on_gpu = backward_case(*lengths, device="cuda", **how).changed(**same)
    found = []
    for case in (on_gpu, on_cpu):
        step = case.step(kernel, deterministic=True)
        step.run()
        found.append(gradients(step))
    for name, left, right in zip(GRADIENTS, *found, strict=True):
        assert torch.equal(left.cpu(), right), name


@every_kernel
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_an_ordered_pass_gives_the_same_bits_every_time(kernel, head_dim):
    lengths = (300, 1, 0, 513, 70)
    case = backward_case(
        lengths, lengths, head_dim=head_dim, dtype="bf16", layout="padded", device="cuda"
    )
    step = case.step(kernel, deterministic=True)
    step.run()
    torch.cuda.synchronize()
    first = gradients(step)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step.run()
    for i in range(RUNS):
        for name in GRADIENTS:
            getattr(step, name).fill_(torch.nan)
        (graph.replay if i % 2 else step.run)()
        assert all(map(torch.equal, gradients(step), first)), f"run {i} differs"

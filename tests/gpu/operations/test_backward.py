"""An ordered backward pass on a real GPU has the bits of the CPU build, every time."""

import pytest

torch = pytest.importorskip("torch")

from tests.cuda import machines  # noqa: E402
from tests.cuda.host import test_words as words  # noqa: E402
from tests.gpu.operations.steps import captured  # noqa: E402
from tests.kernels.backward.cases import (  # noqa: E402
    BACKWARDS,
    CUDA_BACKWARDS,
    GRADIENTS,
    backward_case,
)
from tests.kernels.decode.cases import bits  # noqa: E402

pytestmark = pytest.mark.gpu

every_kernel = pytest.mark.parametrize("kernel", BACKWARDS)
RUNS = 1000


def gradients(step):
    return [bits(getattr(step, name)).clone() for name in GRADIENTS]


@pytest.mark.parametrize("blocks", [1, 2])
def test_four_floats_are_added_to_global_memory(blocks):
    words.check_add_global(machines.gpu_of_sm90(), blocks)


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
    graph = captured(step)
    first = gradients(step)
    for i in range(RUNS):
        for name in GRADIENTS:
            getattr(step, name).fill_(torch.nan)
        (graph.replay if i % 2 else step.run)()
        assert all(map(torch.equal, gradients(step), first)), f"run {i} differs"

"""On real GPUs, a decode in parts and a decode over ranks have the bits of CPU ranks."""

import pytest
import torch

from labkernels.distributed import on_cpus, on_gpus
from tests.distributed import on_ranks

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("needs_sm90")]


@pytest.mark.parametrize("parts", [2, 4, 64])
def test_parts_have_the_bits_of_the_cpu_build(parts):
    pairs = zip(on_ranks.parts("cuda", parts), on_ranks.parts("cpu", parts), strict=True)
    assert all(torch.equal(x, y) for x, y in pairs)


def test_ranks_on_gpus_have_the_bits_of_ranks_on_cpus():
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    found, want = on_gpus(on_ranks.decoded, 2, "cuda"), on_cpus(on_ranks.decoded, 2, "cpu")
    for of_gpu, of_cpu in zip(found, want, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(of_gpu, of_cpu, strict=True))

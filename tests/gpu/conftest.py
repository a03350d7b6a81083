"""Fixtures of the tests that need a GPU."""

import pytest
import torch

from labkernels.cuda.gpu import device


@pytest.fixture
def no_reading():
    """Yield a function; after its call, an operation that waits for the GPU is an error."""
    yield lambda: torch.cuda.set_sync_debug_mode("error")
    torch.cuda.set_sync_debug_mode("default")


@pytest.fixture
def needs_sm90():
    """Skip on a GPU whose bits the CPU build does not give: ex2 and products are those of sm_90."""
    gpu = device.planning_gpu(0)
    if gpu.arch != "sm_90":
        pytest.skip(f"the CPU build has the arithmetic of sm_90, this GPU is {gpu.arch}")

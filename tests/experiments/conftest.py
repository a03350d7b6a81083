"""Stands in for a GPU, with the CPU build and made-up times."""

import pytest

from labkernels.experiments import harness
from labkernels.measure import telemetry
from tests import fake_gpu

FACTS = {"gpu": "FAKE", "driver": "1", "cuda": "13", "torch": "2", "triton": ""}


@pytest.fixture
def on_gpu(monkeypatch):
    """Make recordings find a GPU."""
    monkeypatch.setattr(harness, "gpu_missing", lambda: None)
    monkeypatch.setattr(telemetry, "facts", lambda: FACTS)


@pytest.fixture
def made_up_gpu(monkeypatch, on_gpu):
    """Make the kernels of recordings run on the CPU and take a millisecond."""
    fake_gpu.install(monkeypatch)
    monkeypatch.setattr(harness.Recording, "device", "cpu")

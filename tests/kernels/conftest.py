"""Fixtures of the kernels' tests."""

import importlib.util
import sys

import pytest


@pytest.fixture
def interpreted():
    """Skip without Triton; fail where it was imported too early to interpret."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("needs triton (Linux only)")
    imported = sys.modules.get("triton")
    if imported is not None and not imported.knobs.runtime.interpret:
        pytest.fail("something imported triton without its interpreter before these tests")

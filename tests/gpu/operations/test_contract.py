"""Every kernel keeps the contract of tests/kernels on a real GPU, and so do the references."""

import pytest

from tests.kernels.contract import run_checked
from tests.kernels.test_invariance import BATCHES
from tests.kernels.trials import trials

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(("kind", "trial"), trials("cuda", ("cuda", "triton")))
def test_every_case(kind, trial):
    trial.check("cuda")


@pytest.mark.parametrize(
    ("operation", "kernel"),
    [("decode", "reference"), ("prefill", "reference_prefill"), ("mla", "reference_mla")],
)
def test_float64_reference(operation, kernel):
    run_checked(BATCHES[operation](dtype="bf16", device="cuda"), kernel, sharp=False)

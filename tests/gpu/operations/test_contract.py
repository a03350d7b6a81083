"""Every kernel keeps the contract of tests/kernels on a real GPU, and so do the references.

Thousands of random calls keep it, too. A family is what is compiled, named by a seed; each family
has some problems. Of a family and its second kernel the compiler has 16 bits and 8 bits; so 5,000
calls take some hundred compilations.
"""

from collections import Counter

import pytest

from tests.fuzz.__main__ import judged
from tests.fuzz.problems import Seeded
from tests.kernels.contract import run_checked
from tests.kernels.test_invariance import BATCHES
from tests.kernels.trials import trials

pytestmark = pytest.mark.gpu

FAMILIES = {"decode": 180, "prefill": 160, "backward": 80}
FAMILIES |= {"decode_8_bits": 220, "prefill_8_bits": 100, "append_8_bits": 100}
PROBLEMS, OF_A_TEST = 12, 10  # of a family; families
PARTS = [(verb, n) for verb, most in FAMILIES.items() for n in range(0, most, OF_A_TEST)]


@pytest.mark.parametrize(("kind", "trial"), trials("cuda", ("cuda", "triton")))
def test_every_case(kind, trial):
    trial.check("cuda")


@pytest.mark.parametrize(
    ("operation", "kernel"),
    [("decode", "reference"), ("prefill", "reference_prefill"), ("mla", "reference_mla")],
)
def test_float64_reference(operation, kernel):
    run_checked(BATCHES[operation](dtype="bf16", device="cuda"), kernel, sharp=False)


@pytest.mark.long
@pytest.mark.parametrize(("verb", "first"), PARTS)
def test_random_calls(verb, first):
    seeds = range(first, first + OF_A_TEST)
    calls = [Seeded(seed, problem, "cuda") for seed in seeds for problem in range(PROBLEMS)]
    found = Counter(judged(verb, call) for call in calls)
    assert found["right"] == len(calls), f"{dict(found)}: the commands above repeat a call"

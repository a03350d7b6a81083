"""Thousands of random calls of variants, and of 8 bits, keep their contract on a real GPU.

A family is what is compiled, named by a seed; each family has some problems. Of a family and its
second kernel the compiler has 16 bits and 8 bits; so 5,000 calls take some hundred compilations.
"""

from collections import Counter

import pytest

from tests.fuzz.__main__ import judged
from tests.fuzz.problems import Seeded

pytestmark = [pytest.mark.gpu, pytest.mark.long]

FAMILIES = {"decode": 180, "prefill": 160, "backward": 80}
FAMILIES |= {"decode_8_bits": 220, "prefill_8_bits": 100, "append_8_bits": 100}
PROBLEMS, OF_A_TEST = 12, 10  # of a family; families

PARTS = [(verb, n) for verb, most in FAMILIES.items() for n in range(0, most, OF_A_TEST)]


@pytest.mark.parametrize(("verb", "first"), PARTS)
def test_random_calls(verb, first):
    seeds = range(first, first + OF_A_TEST)
    calls = [Seeded(seed, problem, "cuda") for seed in seeds for problem in range(PROBLEMS)]
    found = Counter(judged(verb, call) for call in calls)
    assert found["right"] == len(calls), f"{dict(found)}: the commands above repeat a call"

"""A few random calls of every verb, of fixed seeds; `make fuzz` goes on for an hour, with others.

A call that fails is repeated by its seed, as `python -m tests.fuzz --help` says.
"""

import pytest

from tests.fuzz.problems import VERBS, Seeded

SEEDS = {"decode": 8, "prefill": 6, "mla": 3, "backward": 3, "append": 12}
SEEDS |= {"decode_8_bits": 6, "prefill_8_bits": 2, "append_8_bits": 6}


@pytest.mark.parametrize("verb", VERBS)
def test_a_random_call_keeps_its_contract(verb):
    for seed in range(SEEDS[verb]):
        VERBS[verb](Seeded(seed, wide=False, varied=False))

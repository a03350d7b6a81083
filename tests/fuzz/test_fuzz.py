"""Hypothesis chooses random calls of every verb, compares them with float64, and shrinks failures.

Each `make test` makes the same few calls; `make fuzz` goes on for an hour, with other seeds.
"""

from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.problems import VERBS, Seeded
from tests.kernels.decode.cases import Case
from tests.kernels.mla.cases import MlaCase
from tests.kernels.prefill.cases import PrefillCase

EXAMPLES = {"decode": 8, "prefill": 6, "mla": 3, "backward": 3, "append": 12}
EXAMPLES |= {"decode_8_bits": 6, "prefill_8_bits": 2, "append_8_bits": 6}
quietly = [HealthCheck.too_slow, HealthCheck.data_too_large]


@dataclass
class Drawn:
    """A chooser whose choices Hypothesis draws."""

    data: st.DataObject
    device: str = "cpu"
    wide: bool = False
    varied: bool = False

    def pick(self, options):
        return self.data.draw(st.sampled_from(list(options)))

    def integer(self, most):
        return self.data.draw(st.integers(0, most))

    def of_problem(self):
        """Do nothing: each call is drawn as a whole."""


@pytest.mark.parametrize("verb", VERBS)
def test_a_random_call_keeps_its_contract(verb):
    @settings(max_examples=EXAMPLES[verb], suppress_health_check=quietly)
    @given(st.data())
    def holds(data):
        VERBS[verb](Drawn(data))

    holds()


@pytest.mark.long
@pytest.mark.parametrize("verb", ["decode", "prefill", "backward", "decode_8_bits"])
def test_a_random_variant_keeps_its_contract(verb):
    for seed in range(20):
        for problem in range(2):
            VERBS[verb](Seeded(seed, problem, wide=False))


@pytest.mark.parametrize("verb", ["decode", "prefill", "mla"])
def test_a_wrong_output_is_found(verb, monkeypatch):
    kinds = {"decode": Case, "prefill": PrefillCase, "mla": MlaCase}
    right = kinds[verb].run

    def wrong(self, kernel, **options):
        step = right(self, kernel, **options)
        step.out.mul_(1.05)
        return step

    monkeypatch.setattr(kinds[verb], "run", wrong)
    few = range(20)  # the first may have no keys; a seed decides everything
    with pytest.raises(AssertionError, match="out is"):
        list(map(VERBS[verb], (Seeded(seed, wide=False, varied=False) for seed in few)))

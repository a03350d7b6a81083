"""Thousands of random backward passes of variants on a real GPU keep their contract."""

import pytest

torch = pytest.importorskip("torch")

from tests.fuzz.problems import VERBS, Seeded  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.long]


@pytest.mark.parametrize("part", range(10))
def test_random_gradients_of_variants(part):
    for seed in range(500 * part, 500 * (part + 1)):
        VERBS["backward"](Seeded(seed, "cuda", wide=False))

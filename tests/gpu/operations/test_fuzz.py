"""Thousands of random calls of variants on a real GPU keep their contract."""

import pytest

torch = pytest.importorskip("torch")

from tests.fuzz.problems import VERBS, Seeded  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.long]


@pytest.mark.parametrize("part", range(10))
@pytest.mark.parametrize("verb", ["backward", "decode", "prefill"])
def test_random_variants(verb, part):
    """A prefill has masks of bits besides."""
    for seed in range(500 * part, 500 * (part + 1)):
        VERBS[verb](Seeded(seed, "cuda", wide=False))

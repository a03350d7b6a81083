"""The probes of an MLA decode tell the kernel with its bug from the kernel without."""

import numpy as np
import pytest

from labkernels.chapters import a_typo_that_looked_like_rounding as typo
from labkernels.kernels.mla.inputs import mla_inputs
from labkernels.kernels.mla.workload import MlaDecode
from labkernels.kernels.random_inputs import ExactNormal
from labkernels.measure.mutants.mla import DUPLICATED_INDEX, KERNEL, TILE
from tests.kernels.contract import SPECS
from tests.kernels.trials import tiles_of

KEYS = 128  # so that bf16 holds the weights of the counts, 1 / 128, exactly


WRONG = DUPLICATED_INDEX.spec(KERNEL)
SLOTS = {KERNEL: np.arange(KEYS), WRONG: typo.duplicated_index(KEYS)}


def decode(case, kernel):
    return typo.decode(case, kernel=kernel, tile=TILE, splits=1)


def test_the_index_is_that_of_the_report():
    wrong = [0, 2, 4, 6, 4, 6, 8, 10, 8, 10, 12, 14, 12, 14, 16, 18]
    assert typo.duplicated_index(16).tolist() == wrong


@pytest.mark.parametrize("kernel", SLOTS, ids=["right", "wrong"])
def test_the_kernel_reads_the_keys_that_the_slots_name(case, kernel):
    out, slots = decode(case, kernel), SLOTS[kernel]
    assert typo.signature(out, typo.read_instead(case, slots))["rel L2"] < OFF
    counts = KEYS * decode(typo.counting_case(case), kernel)[..., :KEYS]
    assert (counts == np.bincount(slots, minlength=KEYS)[:KEYS]).all()
    gap = typo.relative(out, decode(typo.shuffled_case(case, seed=2), kernel))
    if kernel is KERNEL:
        assert 0 < gap < np.sqrt(2) * OFF  # the errors of both outputs, which are independent
    else:
        assert gap > 0.5


@pytest.mark.one_in(4)
@pytest.mark.parametrize("tile", [t for t in tiles_of(SPECS[KERNEL], head_dim=576) if t != TILE])
def test_no_other_tile_has_the_bug(tile, case):
    right, wrong = (typo.decode(case, kernel=k, tile=tile, splits=1) for k in SLOTS)
    assert np.array_equal(right, wrong)


def test_a_nan_is_beyond_every_tolerance():
    truth = np.ones((2, 3))
    out = truth.copy()
    out[0, 0] = np.nan
    found = typo.signature(out, truth)
    assert found["beyond 1e-3"] == 1 / 6
    assert np.isnan([found["max abs"], found["cosine"], found["rel L2"]]).all()


OFF = 3e-3  # most of a right output; bf16's rounding of P and of the store makes 1.8e-3


@pytest.fixture(scope="module")
def case():
    workload = MlaDecode((KEYS, KEYS), 3, page_size=16, dtype="bf16")
    return mla_inputs(workload, ExactNormal(1))

"""The probes of an MLA decode tell the kernel with its bug from the kernel without."""

import numpy as np
import pytest

from labkernels.chapters import a_typo_that_looked_like_rounding
from labkernels.kernels.mla.inputs import mla_inputs
from labkernels.kernels.mla.workload import MlaDecode
from labkernels.kernels.random_inputs import ExactNormal
from labkernels.measure.mutants.mla import DUPLICATED_INDEX, KERNEL, TILE

KEYS = 128  # so that bf16 holds the weights of the counts, 1 / 128, exactly
WRONG = DUPLICATED_INDEX.spec(KERNEL)
OFF = 3e-3  # most of a right output; bf16's rounding of P and of the store makes 1.8e-3


@pytest.fixture(scope="module")
def case():
    workload = MlaDecode((KEYS, KEYS), 3, page_size=16, dtype="bf16")
    return mla_inputs(workload, ExactNormal(1))


def test_the_index_is_that_of_the_report():
    assert a_typo_that_looked_like_rounding.duplicated_index(16).tolist() == [
        *(0, 2, 4, 6, 4, 6, 8, 10),
        *(8, 10, 12, 14, 12, 14, 16, 18),
    ]


@pytest.mark.parametrize(
    ("kernel", "slots"),
    [(KERNEL, np.arange(KEYS)), (WRONG, a_typo_that_looked_like_rounding.duplicated_index(KEYS))],
    ids=["right", "wrong"],
)
def test_the_kernel_reads_the_keys_that_the_slots_name(case, kernel, slots):
    out = a_typo_that_looked_like_rounding.decode(case, kernel=kernel, tile=TILE, splits=1)
    found = a_typo_that_looked_like_rounding.signature(
        out, a_typo_that_looked_like_rounding.read_instead(case, slots)
    )
    assert found["rel L2"] < OFF


def test_counts_are_integers(case):
    probe = a_typo_that_looked_like_rounding.counting_case(case)
    for kernel, slots in (
        (KERNEL, np.arange(KEYS)),
        (WRONG, a_typo_that_looked_like_rounding.duplicated_index(KEYS)),
    ):
        out = (
            KEYS
            * a_typo_that_looked_like_rounding.decode(probe, kernel=kernel, tile=TILE, splits=1)[
                ..., :KEYS
            ]
        )
        assert (out == np.bincount(slots, minlength=KEYS)[:KEYS]).all()


def test_shuffled_rows_change_nothing_but_rounding(case):
    shuffled = a_typo_that_looked_like_rounding.shuffled_case(case, seed=2)
    gap = {}
    for kernel in (KERNEL, WRONG):
        both = [
            a_typo_that_looked_like_rounding.decode(c, kernel=kernel, tile=TILE, splits=1)
            for c in (case, shuffled)
        ]
        gap[kernel] = a_typo_that_looked_like_rounding.relative(*both)
    assert 0 < gap[KERNEL] < np.sqrt(2) * OFF  # the errors of both outputs, which are independent
    assert gap[WRONG] > 0.5


def test_a_nan_is_beyond_every_tolerance():
    truth = np.ones((2, 3))
    out = truth.copy()
    out[0, 0] = np.nan
    found = a_typo_that_looked_like_rounding.signature(out, truth)
    assert found["beyond 1e-3"] == 1 / 6
    assert np.isnan([found["max abs"], found["cosine"], found["rel L2"]]).all()

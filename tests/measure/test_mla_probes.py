"""The probes of an MLA decode, on the kernel with and without its bug."""

import numpy as np
import pytest

from labkernels.measure import mla_probes
from labkernels.measure.mla_cases import exact_mla_case
from labkernels.measure.mla_mutants import DUPLICATED_INDEX, KERNEL, TILE
from labkernels.workload import MlaDecode

KEYS = 128  # so that the weights of the counts, 1 / 128, are numbers of bf16
WRONG = DUPLICATED_INDEX.spec(KERNEL)


@pytest.fixture(scope="module")
def case():
    workload = MlaDecode((KEYS, KEYS), 3, page_size=16, dtype="bf16")
    return exact_mla_case(workload, seed=1, device="cpu")


def test_the_index_is_that_of_the_report():
    assert mla_probes.duplicated_index(16).tolist() == [
        *(0, 2, 4, 6, 4, 6, 8, 10),
        *(8, 10, 12, 14, 12, 14, 16, 18),
    ]


@pytest.mark.parametrize(
    ("kernel", "slots"),
    [(KERNEL, np.arange(KEYS)), (WRONG, mla_probes.duplicated_index(KEYS))],
    ids=["right", "wrong"],
)
def test_the_kernel_reads_the_keys_that_the_slots_name(case, kernel, slots):
    out = mla_probes.decode(case, kernel=kernel, tile=TILE, splits=1)
    found = mla_probes.signature(out, mla_probes.read_instead(case, slots))
    assert found["rel L2"] < 3e-3  # bf16's rounding of P and of the store: 1.8e-3


def test_counts_are_integers(case):
    probe = mla_probes.counting_case(case)
    for kernel, slots in ((KERNEL, np.arange(KEYS)), (WRONG, mla_probes.duplicated_index(KEYS))):
        out = KEYS * mla_probes.decode(probe, kernel=kernel, tile=TILE, splits=1)[..., :KEYS]
        assert (out == np.bincount(slots, minlength=KEYS)[:KEYS]).all()


def test_shuffled_rows_change_nothing_but_rounding(case):
    shuffled = mla_probes.shuffled_case(case, seed=2)
    gap = {}
    for kernel in (KERNEL, WRONG):
        both = [mla_probes.decode(c, kernel=kernel, tile=TILE, splits=1) for c in (case, shuffled)]
        gap[kernel] = mla_probes.relative(*both)
    assert 0 < gap[KERNEL] < 4e-3
    assert gap[WRONG] > 0.5


def test_a_nan_is_beyond_every_tolerance():
    truth = np.ones((2, 3))
    out = truth.copy()
    out[0, 0] = np.nan
    found = mla_probes.signature(out, truth)
    assert found["beyond 1e-3"] == 1 / 6
    assert np.isnan([found["max abs"], found["cosine"], found["rel L2"]]).all()

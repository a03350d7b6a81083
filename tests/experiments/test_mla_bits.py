"""The CPU build of the MLA kernels meets the bits that the GPU recorded."""

import pytest

from labkernels.experiments import mla_bits
from labkernels.records import store

PATH = store.DATA_DIR / mla_bits.DATA_FILE
TRIALS = list(mla_bits.trials())


def recorded():
    return store.newest(store.read(PATH))


def test_the_recorded_outputs_are_those_of_today_and_more_than_a_million():
    rows = recorded()
    assert len(rows) == len(TRIALS)
    assert sum(row["value"] for row in rows) >= 1e6


@pytest.mark.parametrize("kernel", sorted({trial.instance.kernel for trial in TRIALS}))
def test_the_cpu_build_gives_the_gpus_bits(kernel):
    different = []
    for trial, row in zip(TRIALS, recorded(), strict=True):
        if trial.instance.kernel != kernel:
            continue
        text = mla_bits.checksum(trial, seed=row["seed"], device="cpu")
        today = mla_bits.row(trial, text)
        if any(row[name] != value for name, value in today.items()):
            different.append(today)
    assert different == []

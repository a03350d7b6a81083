"""The CPU build of the prefill kernels meets the bits that the GPU recorded."""

import pytest

from labkernels.experiments import prefill_bits
from labkernels.records import store

PATH = store.DATA_DIR / prefill_bits.DATA_FILE
TRIALS = list(prefill_bits.trials())


def recorded():
    return store.newest(store.read(PATH))


def test_the_recorded_outputs_are_those_of_today_and_more_than_a_million():
    rows = recorded()
    assert len(rows) == len(TRIALS)
    assert sum(row["value"] for row in rows) >= 1e6


@pytest.mark.parametrize("kernel", sorted({trial.instance.kernel for trial in TRIALS}))
@pytest.mark.parametrize("head_dim", [64, 128, 192, 256])
def test_the_cpu_build_gives_the_gpus_bits(kernel, head_dim):
    different = []
    for trial, row in zip(TRIALS, recorded(), strict=True):
        if (trial.instance.kernel, trial.instance.head_dim) != (kernel, head_dim):
            continue
        text = prefill_bits.checksum(trial, seed=row["seed"], device="cpu")
        today = prefill_bits.row(trial, text)
        if any(row[name] != value for name, value in today.items()):
            different.append(today)
    assert different == []

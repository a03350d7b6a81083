"""The CPU build of the ordered backward passes meets the bits that the GPU recorded."""

import pytest

from labkernels.experiments import backward_bits
from labkernels.records import store

PATH = store.DATA_DIR / backward_bits.DATA_FILE
TRIALS = list(backward_bits.trials())


def recorded():
    if not PATH.exists():
        pytest.skip(f"{PATH.name} is not recorded yet")
    return store.newest(store.read(PATH))


def test_a_run_of_other_bits_is_an_error(monkeypatch):
    monkeypatch.setattr(backward_bits, "_differs", lambda *_: True)
    with pytest.raises(ValueError, match="2 of 3 runs have other bits, allowed: 0"):
        backward_bits.checksum(TRIALS[0], seed=0, device="cpu", runs=3)


def test_runs_of_a_trial_have_the_same_bits():
    assert len(backward_bits.checksum(TRIALS[0], seed=0, device="cpu", runs=2)) == 64


def test_the_recorded_outputs_are_those_of_today_and_more_than_a_million():
    rows = recorded()
    assert len(rows) == len(TRIALS)
    assert sum(row["value"] for row in rows) >= 1e6


@pytest.mark.parametrize("kernel", sorted({trial.instance.kernel for trial in TRIALS}))
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_the_cpu_build_gives_the_gpus_bits(kernel, head_dim):
    different = []
    for trial, row in zip(TRIALS, recorded(), strict=True):
        if (trial.instance.kernel, trial.instance.head_dim) != (kernel, head_dim):
            continue
        text = backward_bits.checksum(trial, seed=row["seed"], device="cpu")
        today = backward_bits.row(trial, text)
        if any(row[name] != value for name, value in today.items()):
            different.append(today)
    assert different == []

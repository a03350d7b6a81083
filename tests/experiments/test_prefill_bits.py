"""The CPU build of the prefill kernels meets the bits that the GPU recorded."""

import pytest

from labkernels.experiments import prefill_bits
from labkernels.records import recorded, store

PATH = store.DATA_DIR / prefill_bits.DATA_FILE
TRIALS = list(prefill_bits.trials())


def rows():
    return recorded.newest_of_each(store.read(PATH), ["kernel"])


def pairs(kernel):
    """The kernel's trials of today, and its newest recorded rows."""
    return zip(
        (trial for trial in TRIALS if trial.instance.kernel == kernel),
        store.select(rows(), {"kernel": kernel}),
        strict=True,
    )


def test_the_recorded_outputs_are_more_than_a_million():
    assert sum(row["value"] for row in rows()) >= 1e6


@pytest.mark.parametrize("kernel", sorted({trial.instance.kernel for trial in TRIALS}))
@pytest.mark.parametrize("head_dim", [64, 128, 192, 256])
def test_the_cpu_build_gives_the_gpus_bits(kernel, head_dim):
    different = []
    for trial, row in pairs(kernel):
        if trial.instance.head_dim != head_dim:
            continue
        text = prefill_bits.checksum(trial, seed=row["seed"], device="cpu")
        today = prefill_bits.row(trial, text)
        if any(row[name] != value for name, value in today.items()):
            different.append(today)
    assert different == []

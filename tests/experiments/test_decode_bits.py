"""The CPU build meets the bits that the GPU recorded."""

import numpy as np
import pytest

from labkernels.experiments import decode_bits
from labkernels.measure.cases import exact_decode_case
from labkernels.records import store
from labkernels.workload import Decode

PATH = store.DATA_DIR / decode_bits.DATA_FILE
TRIALS = list(decode_bits.trials())


def recorded():
    return store.newest(store.read(PATH))


def test_the_recorded_outputs_are_those_of_today_and_more_than_a_million():
    rows = recorded()
    assert len(rows) == len(TRIALS)
    assert sum(row["value"] for row in rows) >= 1e6


@pytest.mark.parametrize("kernel", sorted({trial.instance.kernel for trial in TRIALS}))
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_the_cpu_build_gives_the_gpus_bits(kernel, dtype):
    rows = recorded()
    different = []
    for trial, row in zip(TRIALS, rows, strict=True):
        if (trial.instance.kernel, trial.workload.dtype) != (kernel, dtype):
            continue
        today = decode_bits.row(trial, decode_bits.checksum(trial, seed=row["seed"], device="cpu"))
        if any(row[name] != value for name, value in today.items()):
            different.append(today)
    assert different == []


def test_exact_inputs_do_not_depend_on_the_library_that_draws_them():
    case = exact_decode_case(Decode((3, 0, 20), 4, 2, 64, 4, "bf16"), seed=7, device="cpu")
    words = np.random.PCG64(7).random_raw(1).view(np.uint16).astype(int)
    assert case.q[0, 0, 0].item() == pytest.approx((words.sum() - 2 * 0xFFFF) / 2**15, rel=2**-8)
    assert case.q.float().std().item() == pytest.approx(1.15, rel=0.1)
    used = case.cache.page_table.numpy()[[0, 2, 2, 2, 2, 2], [0, 0, 1, 2, 3, 4]]
    assert sorted(used) == list(range(6))

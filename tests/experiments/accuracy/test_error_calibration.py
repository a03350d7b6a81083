"""The error model keeps what it promises, on the recorded run, and a CPU gives the same rows."""

import math

import pytest

from labkernels.experiments.accuracy import error_calibration as calibration
from labkernels.experiments.accuracy.error_calibration import SMALL
from labkernels.kernels.decode.inputs import DISTRIBUTIONS
from labkernels.measure.error_budget import TOTAL
from labkernels.records import store

PATH = store.DATA_DIR / calibration.DATA_FILE
SIGNIFICANT = 20  # standard errors, so that the noise is a twentieth of the bias at most


@pytest.fixture(scope="module")
def recorded():
    return store.read(PATH)


def of(rows, **where):
    return store.select(rows, where)


def test_every_head_spreads_as_predicted_within_15_percent(recorded):
    totals = [row for row in of(recorded, source=TOTAL, other_policy="") if row["samples"] > 8]
    assert {row["family"] for row in totals} == set(DISTRIBUTIONS)
    assert {row["tensor_cores"] for row in totals} == {"on", "off"}
    off = {
        (row["family"], row["dtype"], row["policy"], row["head"]): spread
        for row in totals
        if abs((spread := math.sqrt(row["measured_share"])) - 1) > 0.15
    }
    assert off == {}


def test_every_significant_bias_is_predicted_within_10_percent(recorded):
    rows = [row for row in recorded if row["samples"] > 2]
    rows = [row for row in rows if row["source"] in (TOTAL, "accumulation", "scores")]
    significant = [r for r in rows if abs(r["measured_bias"]) > SIGNIFICANT * r["bias_noise"] > 0]
    assert len([row for row in significant if row["backend"] == "cuda"]) > 50
    wrong = [
        row
        for row in significant
        if abs(row["predicted_bias"] - row["measured_bias"]) > 0.1 * abs(row["measured_bias"])
    ]
    assert wrong == []


@pytest.mark.long
def test_the_cpu_build_gives_the_small_rows_again(recorded):
    small = of(recorded, samples=SMALL.samples, kv_len=SMALL.kv_len)
    again = [
        row
        for chosen in calibration.benches(calibration.grid(SMALL))
        for row in calibration.rows_of(chosen, seed=small[0]["seed"], device="cpu")
    ]
    assert len(again) == len(small)
    for row, old in zip(again, small, strict=True):
        for name, value in row.items():
            # The order of float64 sums depends on the machine. The smallest errors are 1e-9 of o,
            # and their squares are smaller still.
            floor = 1e-14 if "bias" in name else 1e-23
            same = value == old[name] or value == pytest.approx(old[name], rel=1e-5, abs=floor)
            assert same, (name, row, old[name])

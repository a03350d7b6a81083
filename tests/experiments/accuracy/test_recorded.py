"""What was recorded keeps what the chapters say of the verdict and of the error model."""

import math

import pytest

from labkernels.measure.error_budget import TOTAL
from labkernels.measure.judge.criteria import VERDICT
from labkernels.measure.mutants.decode import MUTANTS
from labkernels.records import store

KERNELS = {"decode_fma", "decode_mma", "decode_mma_n8", "reference"}
FAMILIES = {"normal", "peaky", "sink", "outlier", "mean-shifted"}
WANTED_SHARE = 0.99
SIGNIFICANT = 20  # standard errors, so that the noise is a twentieth of the bias at most


def test_the_verdict_finds_nearly_all_bugs_and_calls_no_right_kernel_wrong():
    def total(rows, column):
        return sum(row[column] for row in rows)

    mine = store.select(store.read("detection"), {"rule": VERDICT})
    wrong = [row for row in mine if row["mutant"]]
    assert {row["mutant"] for row in wrong} <= set(MUTANTS)
    assert total(wrong, "refused") >= WANTED_SHARE * total(wrong, "runs")
    right = [row for row in mine if not row["mutant"]]
    for device in {row["device"] for row in right}:
        found = store.select(right, {"device": device})
        assert total(found, "runs") >= 1000
        assert total(found, "refused") == 0
        assert {row["kernel"] for row in found} >= KERNELS


@pytest.fixture(scope="module")
def calibrated():
    return store.read("error_calibration")


def test_every_head_spreads_as_predicted_within_15_percent(calibrated):
    totals = store.select(calibrated, {"source": TOTAL, "other_policy": ""})
    totals = [row for row in totals if row["samples"] > 8]
    assert {row["family"] for row in totals} == FAMILIES
    assert {row["tensor_cores"] for row in totals} == {"on", "off"}
    off = {
        (row["family"], row["dtype"], row["policy"], row["head"]): spread
        for row in totals
        if abs((spread := math.sqrt(row["measured_share"])) - 1) > 0.15
    }
    assert off == {}


def test_every_significant_bias_is_predicted_within_10_percent(calibrated):
    rows = [row for row in calibrated if row["samples"] > 2]
    rows = [row for row in rows if row["source"] in (TOTAL, "accumulation", "scores")]
    significant = [r for r in rows if abs(r["measured_bias"]) > SIGNIFICANT * r["bias_noise"] > 0]
    assert len([row for row in significant if row["backend"] == "cuda"]) > 50
    wrong = [
        row
        for row in significant
        if abs(row["predicted_bias"] - row["measured_bias"]) > 0.1 * abs(row["measured_bias"])
    ]
    assert wrong == []

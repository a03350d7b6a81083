"""Figures of errors, budgets, policies and detection show what they are given."""

import numpy as np
import pandas as pd
import pytest

from labkernels import plots
from labkernels.plots.accuracy.by_place import by_place
from tests.plots.conftest import ORIGIN, draw

SHARES = {"scores": 1e-3, "exp2": 0.0, "p": 0.499, "accumulation": 0.1, "store": 0.4}


def budget_rows(by="head", groups=3, **columns):
    """Return rows as MeasuredBudget.rows gives them, measured a tenth above predicted."""
    rows = []
    for source, share in {"total": 1.0, **SHARES}.items():
        bias = -2e-6 if source == "total" else 0.0
        row = {"source": source, "predicted_variance": 1e-12 * share, "predicted_share": share}
        row |= {"measured_variance": 1.1e-12 * share, "measured_share": 1.1 * share}
        row |= {"predicted_bias": bias, "measured_bias": 1.05 * bias, "bias_noise": 1e-8}
        rows += [row | {by: group} | columns for group in range(groups)]
    return pd.DataFrame(rows)


def test_shares_have_the_bias_squared_and_a_sum():
    shares = plots.budget_shares(budget_rows())
    assert "exp2" not in shares.index
    assert shares.predicted_share["bias"] == pytest.approx(4.0)
    assert shares.measured_share["bias"] == pytest.approx(4 * 1.05**2)
    assert shares.predicted_share["total"] == pytest.approx(5.0)
    assert shares.measured_share["total"] == pytest.approx(1.1 + 4 * 1.05**2)


LABEL = "p={},denominator={},exp2={},accumulate={},out={}"
POLICIES = {
    "default": ("input", "unrounded", "mufu", "tensor_core"),
    "l of rounded P": ("input", "rounded", "mufu", "tensor_core"),
    "P = hi + lo, promoted sums": ("input_x2", "unrounded", "mufu", "promoted"),
}
CUDA_CORES = ("fp32", "unrounded", "mufu", "fma")


def rows():
    """Return rows of data/performance/numeric_policies.parquet, as far as the figure reads them."""
    found = []
    kernels = [("decode_mma", "on", policy) for policy in POLICIES.values()]
    kernels.append(("decode_fma", "off", CUDA_CORES))
    for place, (kernel, on, policy) in enumerate(kernels):
        base = {"kernel": kernel, "tensor_cores": on, "dtype": "bf16", "batch": 57}
        base |= {"kv_len": 8192, "q_heads": 32, "kv_heads": 8, "head_dim": 128, "page_size": 16}
        time = {"metric": "time_graph", "statistic": "median", "value": 4e-4 * (1 + 0.1 * place)}
        found.append(base | time | {"policy": LABEL.format(*policy, "input")})
        for mean in (0, 1):
            for statistic, value in (("rmse", 1e-4 / (1 + place)), ("bias", -1e-6 / (1 + place))):
                error = {"metric": f"error, V ~ N({mean}, 1)", "statistic": statistic}
                fp32 = {"policy": LABEL.format(*policy, "fp32"), "value": value}
                found.append(base | error | fp32)
    return pd.DataFrame(found)


def test_errors_in_fp32_meet_the_times_of_16_bits():
    costs = plots.policy_costs(rows(), baseline="decode_mma")
    assert len(costs) == 2 * (len(POLICIES) + 1)
    both = costs[costs.words == "P = hi + lo, promoted sums"]
    assert set(both.v) == {"V ~ N(0, 1)", "V ~ N(1, 1)"}
    assert both.time_ratio.tolist() == pytest.approx([1.2, 1.2])
    assert both.rmse.tolist() == pytest.approx([1e-4 / 3] * 2)
    alone = costs[costs.kernel == "decode_fma"]
    assert alone.time_ratio.tolist() == pytest.approx([1.3, 1.3])


def counts():
    rows = [
        ("dropped key", "verdict", 8, 8),
        ("dropped key", "cosine", 8, 2),
        ("P truncated", "verdict", 8, 8),
        ("P truncated", "cosine", 8, 0),
        ("P truncated", "verdict", 400, 399),
        ("P truncated", "cosine", 400, 1),
        ("wrong scale", "verdict", 200, 199),
        ("wrong scale", "cosine", 200, 1),  # half a percent is not 0 either
    ]
    return pd.DataFrame(rows, columns=["mutant", "rule", "runs", "refused"])


def right():
    rows = [("bf16", "verdict", 1000, 0), ("bf16", "cosine", 1000, 250)]
    return pd.DataFrame(rows, columns=["dtype", "rule", "runs", "refused"])


def test_matrix_says_each_share_of_all_runs_and_rounds_none_to_all_or_nothing():
    wrong, fine = plots.refused_shares(counts(), "mutant"), plots.refused_shares(right(), "dtype")
    assert list(wrong.index) == ["dropped key", "P truncated", "wrong scale"]
    assert wrong.loc["P truncated", "verdict"] == pytest.approx(100 * 407 / 408)
    figure = draw(plots.detection_matrix(wrong, fine, origin=ORIGIN))
    above, below = figure.axes
    assert [text.get_text() for text in above.texts] == ["100", "25", *[">99", "<1"] * 2]
    assert [text.get_text() for text in below.texts] == ["0", "25"]
    assert [label.get_text() for label in above.get_yticklabels()] == list(wrong.index)
    assert [label.get_text() for label in above.get_xticklabels()] == list(wrong)
    assert np.array_equal(above.collections[0].get_array(), wrong)
    with pytest.raises(ValueError, match="rules of right"):
        plots.detection_matrix(wrong, wrong[["cosine"]], origin=ORIGIN)


def test_groups_of_inputs_stand_beside_each_other():
    sizes = {"random": 4, "SmolLM2": 3}
    rows = [
        ("decode", "on", inputs, head, head, 1e-3)
        for inputs, heads in sizes.items()
        for head in range(heads)
    ]
    columns = ["operation", "kind", "inputs", "sample", "head", "value"]
    cells = pd.DataFrame(rows, columns=columns, index=[0] * len(rows))  # as pd.concat may leave it
    axes = by_place(cells, label="error", origin="").axes[0]
    places = axes.collections[0].get_offsets()[:, 0]
    (line,) = axes.lines
    parted = np.searchsorted(places, line.get_xdata()[0])
    assert [parted, len(places) - parted] == list(sizes.values())
    assert [text.get_text() for text in axes.get_xticklabels()] == list("0123012")
    assert [text.get_text() for text in axes.texts] == list(sizes)

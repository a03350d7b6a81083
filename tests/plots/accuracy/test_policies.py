import pandas as pd
import pytest

from labkernels import plots
from tests.plots.conftest import ORIGIN, draw

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


def test_a_policy_is_named_by_what_it_changes():
    for words, policy in POLICIES.items():
        assert plots.in_words(LABEL.format(*policy, "fp32")) == words


def test_errors_in_fp32_meet_the_times_of_16_bits():
    costs = plots.policy_costs(rows(), baseline="decode_mma")
    assert len(costs) == 2 * (len(POLICIES) + 1)
    both = costs[costs.words == "P = hi + lo, promoted sums"]
    assert set(both.v) == {"V ~ N(0, 1)", "V ~ N(1, 1)"}
    assert both.time_ratio.tolist() == pytest.approx([1.2, 1.2])
    assert both.rmse.tolist() == pytest.approx([1e-4 / 3] * 2)
    alone = costs[costs.kernel == "decode_fma"]
    assert alone.time_ratio.tolist() == pytest.approx([1.3, 1.3])


def test_policies_stand_beside_their_time_and_errors():
    figure = draw(plots.policies(plots.policy_costs(rows(), baseline="decode_mma"), origin=ORIGIN))
    time, rmse, bias = figure.axes
    labels = [label.get_text() for label in time.get_yticklabels()]
    assert labels[0] == "default"
    assert set(labels) == {*POLICIES, "P and sums in fp32"}
    assert (rmse.get_xscale(), bias.get_xscale()) == ("log", "log")
    assert len(time.lines) == 1 + 2
    assert figure.get_supxlabel() == ORIGIN

"""Figures of times, counters, searches and resources show what they are given."""

import pandas as pd
import pytest

from labkernels import plots
from labkernels.plots.performance.counters import STALLS
from tests.plots.conftest import ORIGIN, draw


def counted(kernel="prefill_mma", head_dim=128, functions=(("f", 2e-3), ("g", 1e-3))):
    values = {"tensor_pipe": 62.0, "issue": 36.0, "stall_selected": 1.0, "stall_wait": 2.0}
    base = {"kernel": kernel, "tile": "", "head_dim": head_dim, "kv_len": 4096}
    rows = [
        base | {"note": name, "metric": metric, "value": value}
        for name, time_s in functions
        for metric, value in ({"time": time_s} | values).items()
    ]
    return pd.DataFrame(rows)


def table():
    frames = [counted(), counted("torch_fa2", 64), counted("cublas", 0, (("h", 1e-3),))]
    refused = pd.DataFrame([{"kernel": "x", "metric": "refused", "value": 1.0}])
    return plots.counter_table(pd.concat([*frames, refused]))


def test_a_call_is_its_longest_kernel_and_the_time_of_all():
    found = table().set_index("kernel")
    assert list(found.index) == ["prefill_mma", "torch_fa2", "cublas"]
    assert found.function.tolist() == ["f", "f", "h"]
    assert found.call_s.tolist() == [3e-3, 3e-3, 1e-3]
    assert found.launches.tolist() == [2, 2, 1]


def test_waiting_warps_add_up_to_those_there_are():
    rows = plots.waiting(table().iloc[:1])
    assert list(rows.reason) == list(STALLS)
    assert abs(rows.warps.sum() - 0.36 * 3) < 1e-12
    figure = draw(plots.waiting_warps(rows, origin=ORIGIN))
    assert len(figure.axes[0].patches) == len(STALLS)


def test_table_is_the_same_text_every_time():
    rows = pd.DataFrame({"kernel": ["decode_fma", "decode_mma"], "rmse": [0.12345, None]})
    (text,) = {plots.table(rows, "errors", {"rmse": "{:.2f}"}).to_html() for _ in range(3)}
    for words in ("0.12<", "–", "T_errors"):
        assert words in text
    with pytest.raises(ValueError, match="formats has 'speed', allowed: kernel"):
        plots.table(pd.DataFrame({"kernel": []}), "empty", {"speed": "{:.2f}"})

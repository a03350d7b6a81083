import pandas as pd

from labkernels import plots
from tests.plots.conftest import ORIGIN, draw


def test_a_mark_for_each_measured_target_at_its_ratio_over_the_promise():
    rows = [
        ("decode", "fp16", 1.1, 1.0),
        ("decode", "bf16", 0.9, 1.0),
        ("prefill", "bf16", None, 1.05),
        ("prefill", "bf16", 2.1, 1.05),
    ]
    scores = pd.DataFrame(rows, columns=["part", "dtype", "ratio", "promised"])
    (axes,) = draw(plots.ratios_by_part(scores, origin=ORIGIN)).axes
    found = sorted(float(x) for dots in axes.collections for x, _ in dots.get_offsets())
    assert found == [0.9, 1.1, 2.0]

"""Tests of the figures of MLA decode."""

import numpy as np
import pandas as pd
import pytest

from labkernels import plots
from labkernels.hardware import gpu
from labkernels.kernels.mla.workload import MlaDecode


def test_a_time_at_the_roof_is_a_hundred_percent():
    h200 = gpu("h200")
    rows = []
    for heads in (1, 128):
        work = MlaDecode((4096,) * 64, heads)
        memory_s = work.bytes / h200.measured_copy_bytes_per_s
        math_s = work.flops / h200.measured_bf16_matmul_flops
        cell = {"kernel": "mla_mma", "tensor_cores": "on", "dtype": "bf16", "q_heads": heads}
        cell |= {"q_len": 1, "value": max(memory_s, math_s)}
        cell |= {"bytes": work.bytes, "flops": work.flops}
        rows.append(cell)
    figure = plots.roof_by_heads(pd.DataFrame(rows), h200, origin="made up")
    (line,) = figure.axes[0].lines
    assert line.get_ydata() == pytest.approx([100, 100])


def test_counts_have_a_row_of_bars_a_kernel():
    counts = {"right": np.ones(20), "wrong": np.tile([2.0, 0.0], 10)}
    figure = plots.read_counts(counts, first=8, origin="made up")
    heights = [[bar.get_height() for bar in ax.patches] for ax in figure.axes]
    assert heights == [[1] * 8, [2, 0] * 4]

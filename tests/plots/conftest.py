import pickle

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

mpl.use("Agg")

ORIGIN = "measured on NVIDIA H200, 2026-12-01, commit abc1234"
KERNELS = {
    "decode_fma": "off",
    "decode_mma": "on",
    "flashinfer_cuda_cores": "off",
    "flashinfer_fa2": "on",
}


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


def draw(figure):
    """Lay a figure out as saving would, to show bad labels, and pickle it as a page does."""
    figure.canvas.draw()
    manager, figure.canvas.manager = figure.canvas.manager, None
    pickle.dumps(figure)
    figure.canvas.manager = manager
    return figure


def measurements(*, groups=(1, 4, 8), page_sizes=(16,), dtypes=("fp16", "bf16")):
    """Return rows of the measurements table, as far as the figures read them."""
    rows = []
    for kernel, on in KERNELS.items():
        for group in groups:
            for page_size in page_sizes:
                for dtype in dtypes:
                    base = {"kernel": kernel, "tensor_cores": on, "dtype": dtype, "batch": 57}
                    base |= {"kv_len": 8192, "q_heads": 8 * group, "kv_heads": 8}
                    base |= {"head_dim": 128, "page_size": page_size}
                    time_s = 4.4e-4 * (1 + 0.1 * group * (on == "off"))
                    named = {"q25": 0.99 * time_s, "median": time_s, "q75": 1.01 * time_s}
                    rows += [
                        base | {"metric": "time_graph", "statistic": name, "value": value}
                        for name, value in named.items()
                    ]
                    share = 100 * 4.4e-4 / time_s
                    rows.append(
                        base
                        | {"metric": "copy_ceiling_share", "statistic": "median", "value": share}
                    )
    rows.append({**rows[0], "kernel": "copy", "batch": 0, "metric": "time_graph"})
    return pd.DataFrame(rows)


def error_rows(*, samples=8, heads=4, seed=0):
    """Return rows of the accuracy table for off, on and a peer."""
    rng = np.random.default_rng(seed)
    names = [("decode_fma", "off"), ("decode_mma", "on"), ("torch_sdpa", "")]
    frames = []
    for kernel, on in names:
        sample, head = (index.ravel() for index in np.indices((samples, heads)))
        rmse = 4e-6 * np.exp(rng.normal(0, 0.1, sample.size))
        columns = {"sample": sample, "head": head, "rmse": rmse}
        frames.append(pd.DataFrame(columns).assign(kernel=kernel, tensor_cores=on))
    return pd.concat(frames)

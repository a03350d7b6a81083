"""Numeric policies: the error that each one gains against the time that it takes."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from labkernels.plots import style

_WORKLOAD = ["batch", "kv_len", "q_heads", "kv_heads", "head_dim", "page_size", "dtype"]
_WORDS = style.TABLES["policies"]


def in_words(policy: str) -> str:
    """Return what a policy of data/ does unlike the default, without its output format."""
    words = [_WORDS[switch] for switch in policy.split(",") if switch in _WORDS]
    return ", ".join(words) or "default"


def policy_costs(rows: pd.DataFrame, *, baseline: str) -> pd.DataFrame:
    """Return one row per kernel, workload, policy and mean of V: time, its ratio, and the errors.

    Shapes: rows of data/performance/numeric_policies.parquet, one run. Units: time_ms of one step;
    time_ratio to the time of the same kernel's default, or of the baseline kernel's where it has
    none; rmse and bias before the store
    """
    rows = rows.assign(words=rows.policy.map(in_words))
    keys = ["kernel", "tensor_cores", *_WORKLOAD, "words"]
    times = rows[(rows.metric == "time_graph") & (rows.statistic == "median")]
    times = times[[*keys, "value"]].rename(columns={"value": "time_ms"})
    errors = rows[rows.metric.str.startswith("error, V") & rows.statistic.isin(["rmse", "bias"])]
    wide = errors.pivot(index=[*keys, "metric"], columns="statistic", values="value").reset_index()
    table = wide.merge(times, on=keys).rename_axis(columns=None)
    table["v"] = table.pop("metric").str.removeprefix("error, ")
    table["time_ms"] *= 1e3
    default = times[times.words == "default"].set_index(["kernel", *_WORKLOAD]).time_ms * 1e3
    table["time_ratio"] = [
        row.time_ms / default.get((row.kernel, *place), default.get((baseline, *place)))
        for row, place in zip(
            table.itertuples(), table[_WORKLOAD].itertuples(index=False), strict=True
        )
    ]
    return table


@plt.rc_context(style.HOUSE)
def policies(costs: pd.DataFrame, *, origin: str) -> Figure:
    """Draw each policy's time beside its rmse and its bias before the store.

    Shapes: costs as from `policy_costs`, one workload and dtype
    """
    names = list(dict.fromkeys(costs.sort_values("time_ratio").words))
    names.sort(key=lambda name: costs[costs.words == name].rmse.mean(), reverse=True)
    figure, panels = style.new_figure(3, 1, height_inches=1.8 + 0.52 * len(names), sharey=True)
    kernels = list(costs.groupby(["kernel", "tensor_cores"], sort=False))
    for shift, ((kernel, on), frame) in zip(
        np.linspace(-0.14, 0.14, len(kernels)), kernels, strict=True
    ):
        for filled, (v, part) in zip((False, True), frame.groupby("v"), strict=True):
            places = [names.index(word) + shift for word in part.words]
            look = {"color": style.colour(kernel), "marker": style.MARKERS[on], "ls": "none"}
            look |= {} if filled else {"markerfacecolor": "white"}
            label = f"{style.name(kernel)}, {v}"
            if not filled:
                panels[0].plot(part.time_ratio, places, **look | {"markerfacecolor": None})
            panels[1].plot(part.rmse, places, label=label, **look)
            panels[2].plot(part.bias.abs(), places, **look)
    panels[0].axvline(1, color=style.CEILING, lw=1.2)
    panels[0].set_xlabel("time / time of the default")
    panels[1].set(xscale="log", xlabel="rmse before the store")
    panels[2].set(xscale="log", xlabel="|bias| before the store")
    panels[0].set_yticks(range(len(names)), names)
    panels[0].invert_yaxis()
    figure.legend(loc="outside upper left", ncols=2)
    return style.say_origin(figure, origin)

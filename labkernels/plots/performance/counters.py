"""Hardware counters: how busy each part of an SM was, what warps waited for, and the ladder."""

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from labkernels.plots import style

STALLS, PARTS = style.TABLES["stalls"], style.TABLES["parts"]
_CALL = ["kernel", "tile", "head_dim", "kv_len"]


def counter_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Return one row per call: the counters of its longest kernel, one per column.

    Units: as recorded; call_s is the time of all kernels of the call, launches their number.
    """
    counted = rows[~rows.metric.isin(["refused", "failed"])]
    wide = counted.pivot(index=[*_CALL, "note"], columns="metric", values="value")
    recorded_order = pd.MultiIndex.from_frame(counted[[*_CALL, "note"]].drop_duplicates())
    wide = wide.reindex(recorded_order).reset_index()
    by_call = wide.groupby(_CALL, sort=False).time
    wide = wide.assign(call_s=by_call.transform("sum"), launches=by_call.transform("size"))
    longest = wide.loc[sorted(by_call.idxmax())]
    return (
        longest.rename(columns={"note": "function"})
        .rename_axis(columns=None)
        .reset_index(drop=True)
    )


def busy(table: pd.DataFrame) -> pd.DataFrame:
    """Return kernel, head_dim, part and percent of a counter table, in the order of PARTS."""
    frames = [
        table[["kernel", "head_dim"]].assign(part=part, percent=table.get(metric, float("nan")))
        for part, metric in PARTS.items()
    ]
    return pd.concat(frames, ignore_index=True)


def waiting(table: pd.DataFrame) -> pd.DataFrame:
    """Return kernel, reason and warps per scheduler in an average clock, of a counter table."""
    frames = []
    for reason, (_, *stalls) in STALLS.items():
        metrics = (f"stall_{stall}" for stall in stalls)
        per_issue = sum(table[metric].fillna(0) for metric in metrics if metric in table)
        warps = per_issue * table.issue / 100
        frames.append(table[["kernel"]].assign(reason=reason, warps=warps))
    return pd.concat(frames, ignore_index=True)


@plt.rc_context(style.HOUSE)
def busy_parts(rows: pd.DataFrame, *, origin: str) -> Figure:
    """Draw a grid for each head_dim: kernels down, parts of an SM across, percent as a shade.

    Shapes: rows has panel (a title), kernel, part and percent, at most one row for each
    """
    panels = list(rows.groupby("panel", sort=False))
    parts = list(dict.fromkeys(rows.part))
    heights = [frame.kernel.nunique() for _, frame in panels]
    inches = 0.8 + 0.25 * sum(heights) + 0.32 * len(panels)
    figure, axes = style.new_figure(len(panels), height_inches=inches, height_ratios=heights)
    for place, (ax, (title, frame)) in enumerate(zip(axes, panels, strict=True)):
        grid = frame.pivot(index="kernel", columns="part", values="percent")
        grid = grid.reindex(index=list(dict.fromkeys(frame.kernel)), columns=parts)
        words = grid.map(lambda value: f"{value:.0f}" if value == value else "–")
        style.written_grid(ax, grid.rename(index=style.name), words, top=100)
        ax.tick_params(labeltop=place == 0, labelbottom=False, labelsize=7.5)
        ax.set_title(title, fontsize=8.5)
    return style.say_origin(figure, origin)


@plt.rc_context(style.HOUSE)
def waiting_warps(rows: pd.DataFrame, *, origin: str) -> Figure:
    """Draw what the warps of a scheduler do in an average clock, as one bar per kernel.

    Shapes: rows has kernel, reason (of STALLS) and warps
    """
    kernels = list(dict.fromkeys(rows.kernel))
    figure, (axes,) = style.new_figure(height_inches=1.5 + 0.3 * len(kernels))
    for y, kernel in enumerate(kernels):
        left = 0.0
        found = rows[rows.kernel == kernel].set_index("reason").warps
        for reason, (colour, *_) in STALLS.items():
            width = float(found.get(reason, 0.0))
            axes.barh(y, width, left=left, height=0.75, color=colour, label=reason)
            left += width
    axes.set_yticks(range(len(kernels)), [style.name(kernel) for kernel in kernels])
    axes.set(xlabel="warps of a scheduler, in an average clock", ylim=(len(kernels) - 0.4, -0.6))
    axes.grid(axis="y", visible=False)
    handles, labels = axes.get_legend_handles_labels()
    first = dict(zip(labels, handles, strict=True))
    figure.legend(first.values(), first.keys(), loc="outside upper left", ncols=3, fontsize=7.5)
    return style.say_origin(figure, origin)


@plt.rc_context(style.HOUSE)
def ladder(rungs: pd.DataFrame, *, ceilings: dict[str, float], origin: str) -> Figure:
    """Draw the rate of each rung, bottom first, with its counters beside it, and the ceilings.

    Shapes: rungs has rung, kernel, tflops and words; ceilings are rates by what reaches them
    Units: TFLOP/s
    """
    figure, (axes,) = style.new_figure(height_inches=1.1 + 0.42 * len(rungs))
    for name, rate in ceilings.items():
        axes.axvline(rate, color=style.CEILING, lw=1.1, ls=(0, (4, 3)))
        axes.annotate(
            name, (rate, -0.62), color=style.CEILING, fontsize=7.5, ha="right", va="bottom"
        )
    for y, row in enumerate(rungs.itertuples()):
        axes.barh(y, row.tflops, height=0.62, color=style.colour(row.kernel), alpha=0.85)
        inside = row.tflops > 0.5 * max(ceilings.values())
        axes.annotate(
            f"{row.tflops:.0f} TFLOP/s\n{row.words}",
            (row.tflops, y),
            xytext=(-3 if inside else 3, 0),
            textcoords="offset points",
            va="center",
            ha="right" if inside else "left",
            fontsize=7.5,
            color="white" if inside else "#2d343d",
            bbox=None if inside else {"facecolor": "white", "edgecolor": "none", "pad": 0.5},
        )
    axes.set_yticks(range(len(rungs)), rungs.rung, fontsize=8)
    axes.set(xlabel="forward, TFLOP/s", ylim=(len(rungs) - 0.4, -1.1))
    axes.grid(axis="y", visible=False)
    return style.say_origin(figure, origin)

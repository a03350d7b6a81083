"""Two compute paths or two batches: which heads differ, from where on, and by how much."""

from collections.abc import Iterable

import matplotlib.pyplot as plt
import matplotlib.ticker as ticker
import pandas as pd
from matplotlib.figure import Figure

from labkernels.plots import style

_MARKS = ("o", "s", "^", "D")


@plt.rc_context(style.HOUSE)
def road_maps(cells: pd.DataFrame, *, origin: str) -> Figure:
    """Draw how many channels differ for each sample (down) and head (across), one panel per kind.

    Shapes: cells has kind, kv_len, head, different and marked; a marked cell gets a frame
    """
    kinds = list(cells.groupby("kind", sort=False))
    lengths = list(dict.fromkeys(cells.kv_len))
    figure, axes = style.new_figure(
        1, len(kinds), height_inches=0.9 + 0.2 * len(lengths), sharex=True, sharey=True
    )
    most = max(1, cells.different.max())
    for ax, (kind, frame) in zip(axes, kinds, strict=True):
        grid = frame.pivot(index="kv_len", columns="head", values="different").loc[lengths]
        words = grid.map(lambda count: f"{count}" if count else "=")
        style.written_grid(ax, grid, words, top=most)
        for row in frame[frame.marked].itertuples():
            corner = grid.columns.get_loc(row.head) + 0.04, lengths.index(row.kv_len) + 0.04
            ax.add_patch(plt.Rectangle(corner, 0.92, 0.92, fill=False, lw=1.3, color="#d55e00"))
        ax.set_title(kind, fontsize=9)
        ax.set_xlabel("head")
    axes[0].set_ylabel("keys of the sample")
    return style.say_origin(figure, origin)


@plt.rc_context(style.HOUSE)
def position_sweep(rows: pd.DataFrame, *, boundaries: Iterable[int], origin: str) -> Figure:
    """Draw how many channels of a token's output differ, over the token's position.

    Shapes: rows has position, head and different; boundaries are positions at which a tile begins
    """
    figure, (axes,) = style.new_figure(height_inches=2.7)
    for boundary in boundaries:
        axes.axvline(boundary - 0.5, color=style.CEILING, lw=1.0, ls=(0, (4, 3)))
    for mark, (head, frame) in zip(_MARKS, rows.groupby("head"), strict=False):
        dots = {"s": 9, "lw": 0, "alpha": 0.6, "marker": mark, "rasterized": True}
        axes.scatter(frame.position, frame.different, label=f"head {head}", **dots)
    axes.set(xlabel="position of the token", ylabel="channels that differ, of 64")
    axes.xaxis.set_major_locator(ticker.MultipleLocator(128))
    axes.legend(
        ncols=4, loc="lower left", bbox_to_anchor=(0, 1.0), handletextpad=0.1, markerscale=2
    )
    return style.say_origin(figure, origin)


@plt.rc_context(style.HOUSE)
def batch_map(cells: pd.DataFrame, *, origin: str) -> Figure:
    """Draw the share of heads that change, libraries down and batches across, a panel per length.

    Where only some heads change, their number stands in the cell; = marks equal bits, and ! a batch
    that gave other bits when it ran again. What was not run is empty.
    Shapes: cells has way, kv_len, batch, heads_differ, q_heads and heads_unstable.
    """
    ways, lengths = (list(dict.fromkeys(cells[name])) for name in ("way", "kv_len"))
    figure, panels = style.new_figure(
        1, len(lengths), height_inches=1.3 + 0.23 * len(ways), sharey=True
    )
    shares = cells.assign(
        share=cells.heads_differ / cells.q_heads,
        word=[_word(row) for row in cells.itertuples()],
    )
    for axes, length in zip(panels, lengths, strict=True):
        part = shares[shares.kv_len == length]
        grids = (part.pivot(index="way", columns="batch", values=v) for v in ("share", "word"))
        values, words = (grid.reindex(ways) for grid in grids)
        style.written_grid(axes, values, words.fillna(""), top=1.0)
        axes.tick_params(axis="x", labelrotation=90, labelsize=8)
        axes.tick_params(axis="y", labelsize=8)
        axes.set_title(f"{length} keys", fontsize=9)
        axes.set_xlabel("requests")
    return style.say_origin(figure, origin)


def _word(row) -> str:
    if row.heads_unstable:
        return "!"
    if not row.heads_differ:
        return "="
    return f"{row.heads_differ}" if row.heads_differ < row.q_heads else ""

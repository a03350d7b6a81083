"""The picture of the README: time against the query group, beside the map of the error."""

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from labkernels.plots import style
from labkernels.plots.accuracy import errors
from labkernels.plots.performance import times


@plt.rc_context(style.HOUSE)
def readme(groups: pd.DataFrame, cells: pd.DataFrame, *, origin: str) -> Figure:
    """Draw both halves; times as from `times.graph_times`, cells as for `errors.error_maps`.

    Shapes: groups one dtype and all else equal but the group; cells of two kernels, off then on
    """
    panels = list(cells.groupby(["kernel", "tensor_cores"], sort=False))
    figure, (left, *maps) = style.new_figure(
        1,
        1 + len(panels),
        height_inches=4.0,
        width_inches=10,
        width_ratios=(2.5, *[1] * len(panels)),
    )
    times.sweep(left, groups, "group")
    left.set(xlabel="query heads per KV head", ylabel="time of one decode step, ms")
    left.set_ylim(bottom=0)
    left.set_title("Tensor cores buy time, more with every query head")
    left.legend(loc="upper left")
    scale = errors.colour_scale(cells)
    for axes, ((_, on), frame) in zip(maps, panels, strict=True):
        picture = errors.map_panel(axes, frame, scale)
        axes.set(xlabel="query head", title=f"error, {on}")
    maps[0].set_ylabel("sample")
    bar = figure.colorbar(picture, ax=maps, shrink=0.9, aspect=30, pad=0.02)
    bar.set_label("rmse against float64")
    bar.outline.set_visible(False)
    return style.say_origin(figure, origin)

"""Draws the README's picture from the recorded data: python book/readme_picture.py [FILE]."""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from labkernels.plots import style
from labkernels.plots.accuracy import errors
from labkernels.plots.performance import times
from labkernels.records import recorded, store

PICTURE = Path(__file__).with_name("_static") / "readme.png"
CASE = {
    "batch": 57,
    "kv_len": 8192,
    "kv_heads": 8,
    "head_dim": 128,
    "page_size": 16,
    "dtype": "fp16",
}
SHOWN = ("decode_fma", "decode_mma_n8", "flashinfer_cuda_cores", "flashinfer_fa2")
MAPS = ("decode_fma", "decode_mma_n8")


def draw(path: Path) -> None:
    rows = store.read("decode_tensor_cores")
    maps = pd.DataFrame(store.read("decode_accuracy"))
    run = store.select(rows, {"started_utc": maps.started_utc.iloc[0]})
    run = recorded.newest_with(run, SHOWN, CASE)
    groups = times.graph_times(pd.DataFrame(run))
    groups = groups[groups.kernel.isin(SHOWN)]
    for column, value in CASE.items():
        groups = groups[groups[column] == value]
    cells = maps[(maps.dtype == CASE["dtype"]) & maps.kernel.isin(MAPS)]
    readme(groups, cells, origin=recorded.origin(run)).savefig(path)


@plt.rc_context(style.HOUSE)
def readme(groups: pd.DataFrame, cells: pd.DataFrame, *, origin: str) -> Figure:
    """Draws both halves; times as from `times.graph_times`, cells as for `errors.error_maps`.

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


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else PICTURE)

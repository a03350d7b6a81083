"""Registers: what the formula predicts of every compiled kernel against what ptxas made of it."""

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from labkernels.plots import style

ENGINES = {
    "CUDA cores": ("fma", "o"),
    "mma.sync": ("mma", "s"),
    "wgmma": ("wgmma", "D"),
    "none": ("reference", "^"),
}
SPILL = "#2b2b2b"
BAND = 0.12


@plt.rc_context(style.HOUSE)
def predicted_registers(rows: pd.DataFrame, *, origin: str) -> Figure:
    """Draw compiled registers over predicted ones, a mark for each kernel, tile and architecture.

    On the dark line the formula is right; within the band it misses by at most the share BAND. A
    mark's colour and shape say what multiplies in the kernel. Many marks lie on the limits: 255 by
    the hardware, and 128 or 168 by a promise of blocks per SM. A ring marks rows that spill.
    Shapes: rows has predicted, compiled, spill_bytes and engine (a key of ENGINES)
    """
    figure, (axes,) = style.new_figure(height_inches=4.4)
    top = 264
    line = pd.Series([0.0, top])
    share = f"within {100 * BAND:.0f} %"
    axes.fill_between(line, line * (1 - BAND), line * (1 + BAND), color="#e8ebef", label=share)
    axes.plot(line, line, color=style.CEILING, lw=1.0, zorder=1)
    for name, (engine, marker) in ENGINES.items():
        part = rows[rows.engine == name].groupby(["predicted", "compiled"]).size().reset_index()
        if len(part):
            axes.scatter(
                part.predicted,
                part.compiled,
                s=10 + 3 * part[0].clip(upper=12),
                marker=marker,
                color=style.ENGINES[engine],
                edgecolors="white",
                linewidths=0.4,
                alpha=0.85,
                label=name if name != "none" else "copies alone",
                zorder=2,
            )
    spilled = rows[rows.spill_bytes > 0].drop_duplicates(["predicted", "compiled"])
    axes.scatter(
        spilled.predicted,
        spilled.compiled,
        s=110,
        facecolors="none",
        edgecolors=SPILL,
        linewidths=1.2,
        label="spills",
        zorder=3,
    )
    axes.set(xlim=(50, top), ylim=(50, top), aspect="equal")
    axes.set_xlabel("registers per thread, predicted")
    axes.set_ylabel("registers per thread, compiled")
    figure.legend(loc="outside upper left", ncols=3)
    return style.say_origin(figure, origin)

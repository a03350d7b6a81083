"""MLA decode: the share of the roof that kernels reach, and how often each key is read."""

from collections.abc import Mapping

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib import ticker
from matplotlib.figure import Figure

from labkernels.hardware import Gpu
from labkernels.plots import style

_KERNEL = ["kernel", "tensor_cores"]


@plt.rc_context(style.HOUSE)
def roof_by_heads(rows: pd.DataFrame, gpu: Gpu, *, origin: str) -> Figure:
    """Draw the share of the roof that each kernel reaches over the heads, a panel per query length.

    Shapes: rows has kernel, tensor_cores, q_heads, q_len, value (a time), bytes and flops, which
    the call must move and do. Units: percent of the larger of two times, at the GPU's measured copy
    and matrix-product rates.
    """
    memory_s = rows.bytes / gpu.measured_copy_bytes_per_s
    product_s = rows.flops / gpu.measured_bf16_matmul_flops
    shares = rows.assign(percent=100 * np.maximum(memory_s, product_s) / rows.value)
    lengths = sorted(shares.q_len.unique())
    figure, axes = style.new_figure(1, len(lengths), height_inches=3.4, sharey=True)
    for ax, q_len in zip(axes, lengths, strict=True):
        part = shares[shares.q_len == q_len]
        for (kernel, on), line in part.groupby(_KERNEL, sort=False):
            line = line.sort_values("q_heads")
            ax.plot(
                line.q_heads,
                line.percent,
                marker=style.MARKERS[on],
                ls=style.LINES[on],
                color=style.colour(kernel),
                label=style.name(kernel, on),
            )
        ax.set_xscale("log", base=2)
        ax.set_xticks(sorted(part.q_heads.unique()))
        ax.xaxis.set_major_formatter(ticker.FormatStrFormatter("%g"))
        ax.xaxis.set_minor_locator(ticker.NullLocator())
        tokens = "1 token" if q_len == 1 else f"{q_len} tokens"
        ax.set(xlabel="heads", title=f"{tokens} per request", ylim=(0, None))
    axes[0].set_ylabel("percent of the roof")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=3)
    return style.say_origin(figure, origin)


@plt.rc_context(style.HOUSE)
def read_counts(counts: Mapping[str, np.ndarray], *, first: int, origin: str) -> Figure:
    """Draw how often each of the first keys was read, a row of bars per kernel.

    Shapes: counts has an array [keys] per name, of at least `first` numbers.
    """
    figure, axes = style.new_figure(len(counts), 1, height_inches=2.8, sharex=True, sharey=True)
    for ax, (name, times) in zip(axes, counts.items(), strict=True):
        ax.bar(np.arange(first), times[:first], color=style.ENGINES["mma"], width=0.7)
        ax.axhline(1, color=style.RULE, lw=1)
        ax.set_yticks([0, 1, 2])
        ax.set(ylabel="times read", title=name)
    axes[-1].set_xlabel("key")
    return style.say_origin(figure, origin)

"""Which rule finds which bug, and what a test sees of each: its outputs, its LSE, or nothing."""

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from labkernels.plots import style

_WORDS = {(False, False): "–", (True, False): "out", (False, True): "LSE", (True, True): "both"}


def refused_shares(rows: pd.DataFrame, by: str) -> pd.DataFrame:
    """Return what percentage of outputs each rule refused, one line per value of the column `by`.

    Shapes: rows has rule, runs, refused and the column `by`; rules keep the order of the rows
    """
    total = rows.groupby([by, "rule"], sort=False)[["refused", "runs"]].sum()
    shares = 100.0 * total.refused / total.runs
    return shares.unstack("rule")[list(dict.fromkeys(rows.rule))]


@plt.rc_context(style.HOUSE)
def detection_matrix(wrong: pd.DataFrame, right: pd.DataFrame, *, origin: str) -> Figure:
    """Draw what share of each bug's outputs each rule refuses, and below it that of right kernels.

    Shapes: both from `refused_shares`, with the same rules; bugs are drawn in the order given
    """
    if list(wrong) != list(right):
        raise ValueError(f"rules of right = {list(right)}, allowed: {list(wrong)}")
    figure, axes = style.new_figure(
        2, 1, height_inches=1.5 + 0.24 * (len(wrong) + len(right)), sharex=True
    )
    above, below = axes
    above.get_gridspec().set_height_ratios([len(wrong), max(1, len(right))])
    for part, shares in ((above, wrong), (below, right)):
        style.written_grid(part, shares, shares.map(_number), top=100)
    above.set_title("bugs: outputs refused, %")
    below.set_title("right kernels: outputs refused, %")
    above.tick_params(labelbottom=False, labeltop=True, labelsize=7.5)
    below.tick_params(labelbottom=False, labelsize=7.5)
    above.set_xticklabels([name.replace(" ", "\n") for name in wrong])
    return style.say_origin(figure, origin)


def _number(share: float) -> str:
    """Return a whole percentage; a share near 0 or 100 that is not exact is "<1" or ">99"."""
    if share in (0.0, 100.0) or 0.5 < share < 99.5:
        return f"{share:.0f}"
    return "<1" if share < 1 else ">99"


@plt.rc_context(style.HOUSE)
def seen(rows: pd.DataFrame, *, origin: str) -> Figure:
    """Draw a grid an operation: bugs down, inputs with tensor cores off and on across.

    Shapes: rows has operation, bug, inputs, tensor_cores, out and lse, the shares beyond the
    tolerance; a bug is seen where a share is above that of the right kernel, whose bug is "".
    """
    keys = ["operation", "inputs", "tensor_cores"]
    right = rows[rows.bug == ""].set_index(keys)[["out", "lse"]]
    right = right.add_suffix("_right")
    wrong = rows[rows.bug != ""].join(right, on=keys)
    moved = {what: wrong[what] > wrong[f"{what}_right"] for what in ("out", "lse")}
    wrong = wrong.assign(
        word=[_WORDS[pair] for pair in zip(moved["out"], moved["lse"], strict=True)],
        column=wrong.inputs.str.replace(" ", "") + "\n" + wrong.tensor_cores,
    )
    operations = list(dict.fromkeys(wrong.operation))
    figure, panels = style.new_figure(len(operations), 1, height_inches=2.75 * len(operations))
    for axes, operation in zip(panels, operations, strict=True):
        part = wrong[wrong.operation == operation]
        columns, bugs = (list(dict.fromkeys(part[name])) for name in ("column", "bug"))
        words = part.pivot(index="bug", columns="column", values="word").loc[bugs, columns]
        style.written_grid(axes, (words != "–").astype(float), words, top=1.6)
        axes.tick_params(labelsize=8)
        axes.set_title(operation)
    return style.say_origin(figure, origin)

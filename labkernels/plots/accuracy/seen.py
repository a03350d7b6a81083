"""What a test sees of each bug: its outputs, its LSE, both or nothing."""

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from labkernels.plots import style

_WORDS = {(False, False): "–", (True, False): "out", (False, True): "LSE", (True, True): "both"}


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

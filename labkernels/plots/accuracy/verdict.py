"""A verdict as a figure, and as a page that needs no other file."""

import base64
import html
import io
from pathlib import Path

import matplotlib.pyplot as plt
import matplotlib.ticker as ticker
import numpy as np
from matplotlib.figure import Figure

from labkernels.plots import style

_SHOWN_SIGMAS = 8.0
_PAGE = Path(__file__).with_suffix(".html").read_text(encoding="utf-8")


@plt.rc_context(style.HOUSE)
def verdict_figure(verdict, *, origin: str) -> Figure:
    """Draw the size of error over sigma by row of the output and head, and its distribution.

    Shapes: verdict.z [total_q, Hq, Dv], of which finite values count
    """
    z = np.where(np.isfinite(verdict.z), verdict.z, np.nan)
    figure, (above, below) = style.new_figure(2, 1, height_inches=5.0)
    counts = np.isfinite(z).sum(-1)
    rms = np.sqrt(np.nansum(z**2, axis=-1) / np.maximum(counts, 1))
    rms = np.where(counts == 0, np.nan, rms)
    picture = above.imshow(rms, cmap=style.ERROR_MAP, aspect="auto", interpolation="nearest")
    above.grid(visible=False)
    for axis in (above.xaxis, above.yaxis):
        axis.set_major_locator(ticker.MaxNLocator(5, integer=True))
    above.set(xlabel="query head", ylabel="row of the output")
    figure.colorbar(picture, ax=above, label="rms of error / sigma").outline.set_visible(False)
    edges = np.linspace(-_SHOWN_SIGMAS, _SHOWN_SIGMAS, 81)
    values = np.clip(z[np.isfinite(z)], -_SHOWN_SIGMAS, _SHOWN_SIGMAS)
    colour = style.ENGINES["mma"]
    below.hist(values, edges, color=colour, alpha=0.6, label="found")
    normal = np.exp(-(edges**2) / 2) / np.sqrt(2 * np.pi) * max(values.size, 1) * np.diff(edges)[0]
    below.plot(edges, normal, color=style.CEILING, label="normal")
    below.set(
        yscale="log", xlabel="z = error / sigma, the last bins with all beyond", ylabel="elements"
    )
    below.set_ylim(0.5, max(2.0, 3 * values.size))
    below.legend(loc="upper right")
    return style.say_origin(figure, origin)


def verdict_page(verdict, *, origin: str) -> str:
    """Return an HTML page with the answer, its evidence and its figure, in one file."""
    picture = ""
    if np.isfinite(verdict.z).any():
        figure, stored = verdict_figure(verdict, origin=origin), io.BytesIO()
        figure.savefig(stored, format="png")
        plt.close(figure)
        data = base64.b64encode(stored.getvalue()).decode()
        text = "Error in units of its expected sigma: by sample and head, and its distribution"
        picture = f'<img alt="{text}" src="data:image/png;base64,{data}">'
    return _PAGE.format(
        answer=verdict.answer,
        why=html.escape(verdict.why),
        summary=html.escape(verdict.summary()),
        picture=picture,
    )

"""A verdict as a figure, and as a page that needs no other file."""

import base64
import html
import io

import matplotlib.pyplot as plt
import matplotlib.ticker as ticker
import numpy as np
from matplotlib.figure import Figure

from labkernels.plots import style

_SHOWN_SIGMAS = 8.0
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>labkernels: {answer}</title>
<style>:root {{ color-scheme: light dark; --ground: #fff; --ink: #16202a; --panel: #f4f6f8 }}
@media (prefers-color-scheme: dark) {{
  :root {{ --ground: #14181d; --ink: #e3e8ee; --panel: #1f262e }}
}}
body {{ font: 16px/1.5 sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em;
  background: var(--ground); color: var(--ink) }}
pre {{ overflow-x: auto; background: var(--panel); padding: 1em; font-size: 13px }}
img {{ max-width: 100%; background: #fff }}</style></head>
<body><h1>{answer}</h1><p>{why}</p><pre>{summary}</pre>{picture}</body></html>
"""


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

"""Programs that a page of the book runs in the reader's browser, which a chapter places."""

from __future__ import annotations

import html
import importlib.util
from dataclasses import dataclass
from typing import Any

__all__ = [
    "Place",
    "Widget",
    "bits_and_sums",
    "break_kernel",
    "budget",
    "run_kernel",
    "step_kernel",
    "tolerance",
    "which_requests_part",
    "write",
]


@dataclass(frozen=True)
class Widget:
    """A place in a page, which the page's JavaScript fills; without JavaScript it has `words`.

    In JupyterLab, where anywidget is installed, the same JavaScript runs below the cell.
    """

    name: str
    kernel: str
    words: str

    def _repr_html_(self) -> str:
        return (
            f'<div class="lab-widget" data-lab-widget="{self.name}" '
            f'data-kernel="{html.escape(self.kernel)}"><p>{html.escape(self.words)}</p></div>'
        )

    def _repr_mimebundle_(self, **_: object) -> dict[str, Any]:
        bundle: dict[str, Any] = {"text/plain": self.words, "text/html": self._repr_html_()}
        if importlib.util.find_spec("anywidget") is None:
            return bundle
        from labkernels.widgets.notebook import Live

        shown = Live(self.name, self.kernel)._repr_mimebundle_()
        return {**bundle, **{kind: view for kind, view in shown[0].items() if "widget" in kind}}

    def __repr__(self) -> str:
        return self.words


@dataclass(frozen=True)
class Place:
    """Places a widget where a chapter calls it. stands: what its words say of it, by its kernel.

    >>> budget("prefill_mma")
    In the published book a calculator stands here, which shows what a block of prefill_mma takes.
    """

    name: str
    stands: str
    kernel: str = ""

    def __call__(self, *kernel: str) -> Widget:
        """Return the widget, of another kernel than the usual one if it is given."""
        (of,) = kernel or (self.kernel,)
        return Widget(self.name, of, f"In the published book {self.stands.format(kernel=of)}.")


# Runs a CUDA kernel in the reader's browser, bit for bit.
run_kernel = Place(
    "run_kernel", "a form stands here, which runs {kernel} in the browser", "decode_mma"
)
# Breaks the kernel, and shows what the checks and the errors say.
break_kernel = Place("break_kernel", "a form stands here, which breaks {kernel}", "decode_mma")
# Goes through a block of a kernel from barrier to barrier.
step_kernel = Place(
    "step_kernel", "a stepper stands here, which goes through a block of {kernel}", "decode_mma"
)
# Calculates the shared memory, the registers and the occupancy of a block.
budget = Place(
    "budget",
    "a calculator stands here, which shows what a block of {kernel} takes",
    "decode_mma",
)
# Explores number formats, and sums in these formats and in tensor cores.
bits_and_sums = Place("bits", "an explorer of number formats stands here")
# Explores which wrong outputs atol, rtol and the rules in use accept.
tolerance = Place("tolerance", "an explorer of tolerances stands here")
# Explores how libraries cut batches, and which requests may change bits.
which_requests_part = Place("batches", "an explorer of batches stands here")
# The small language model, which writes with tensor cores on and off, side by side.
write = Place("write", "a language model stands here, which writes with tensor cores on and off")

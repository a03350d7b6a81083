"""Programs that a page of the book runs in the reader's browser, which a chapter places."""

from __future__ import annotations

import html
import importlib.util
from dataclasses import dataclass
from typing import Any

__all__ = [
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


def run_kernel(kernel: str = "decode_mma") -> Widget:
    """Place the widget that runs a CUDA kernel in the reader's browser, bit for bit.

    >>> run_kernel()
    In the published book a form stands here, which runs decode_mma in the browser.
    """
    words = f"In the published book a form stands here, which runs {kernel} in the browser."
    return Widget("run_kernel", kernel, words)


def break_kernel() -> Widget:
    """Place the widget that breaks decode_mma and shows what the checks and the errors say.

    >>> break_kernel()
    In the published book a form stands here, which breaks decode_mma.
    """
    words = "In the published book a form stands here, which breaks decode_mma."
    return Widget("break_kernel", "decode_mma", words)


def step_kernel(kernel: str = "decode_mma") -> Widget:
    """Place the widget that goes through a block of a kernel from barrier to barrier.

    >>> step_kernel("prefill_wgmma")
    In the published book a stepper stands here, which goes through a block of prefill_wgmma.
    """
    does = f"goes through a block of {kernel}"
    words = f"In the published book a stepper stands here, which {does}."
    return Widget("step_kernel", kernel, words)


def budget(kernel: str = "decode_mma") -> Widget:
    """Place the calculator of a block's shared memory, registers and occupancy.

    >>> budget("prefill_mma")
    In the published book a calculator stands here, which shows what a block of prefill_mma takes.
    """
    does = f"shows what a block of {kernel} takes"
    return Widget(
        "budget", kernel, f"In the published book a calculator stands here, which {does}."
    )


def bits_and_sums() -> Widget:
    """Place the explorer of number formats, and of sums in these formats and in tensor cores.

    >>> bits_and_sums()
    In the published book an explorer of number formats stands here.
    """
    return Widget("bits", "", "In the published book an explorer of number formats stands here.")


def tolerance() -> Widget:
    """Place the explorer of tolerances: which wrong outputs atol, rtol and the rules in use accept.

    >>> tolerance()
    In the published book an explorer of tolerances stands here.
    """
    words = "In the published book an explorer of tolerances stands here."
    return Widget("tolerance", "", words)


def which_requests_part() -> Widget:
    """Place the explorer of batches: how libraries cut them, and which requests may change bits.

    >>> which_requests_part()
    In the published book an explorer of batches stands here.
    """
    return Widget("batches", "", "In the published book an explorer of batches stands here.")


def write() -> Widget:
    """Place the small language model, which writes with tensor cores on and off, side by side.

    >>> write()
    In the published book a language model stands here, which writes with tensor cores on and off.
    """
    does = "writes with tensor cores on and off"
    return Widget("write", "", f"In the published book a language model stands here, which {does}.")

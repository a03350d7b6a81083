"""The widgets in JupyterLab: the JavaScript of the pages, which asks this kernel for its data."""

from __future__ import annotations

import functools
import json

import anywidget
import traitlets

from labkernels.places import WIDGETS
from labkernels.widgets import kernels, program


@functools.cache
def asset(name: str) -> str:
    """Return the data of a widget as JSON; for some, the first call compiles a kernel for seconds.

    Raises: LookupError for a name that no widget asks for; what the compiler raises.
    """
    if name in program.OTHERS:
        return json.dumps(program.OTHERS[name]())
    offers = {offer.name: offer for offer in kernels.offers()}
    if name not in offers:
        raise LookupError(f"asset = {name!r}, allowed: {', '.join((*program.OTHERS, *offers))}")
    return json.dumps(offers[name].asset())


@functools.cache
def _module() -> str:
    return program.module(kernels.offers())


class Live(anywidget.AnyWidget):
    """A widget of the book in a noteprogram."""

    _css = (WIDGETS / "widgets.css").read_text()
    name = traitlets.Unicode().tag(sync=True)
    kernel = traitlets.Unicode().tag(sync=True)

    def __init__(self, name: str, kernel: str) -> None:
        super().__init__(_esm=_module(), name=name, kernel=kernel)
        self.on_msg(self._answer)

    def _answer(self, _: object, content: dict[str, str], __: object) -> None:
        """Send what the page asks for, or the reason why it is missing."""
        wanted = content["asset"]
        try:
            self.send({"asset": wanted, "text": asset(wanted)})
        except (RuntimeError, LookupError, OSError) as error:
            self.send({"asset": wanted, "error": str(error)})

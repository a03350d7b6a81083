"""Where data/ and the widgets lie: beside the package in a checkout, inside it in a wheel."""

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent
# In a wheel, the checkout's data/ lies in labkernels/data/: see tool.hatch in pyproject.toml.
_INSIDE = _PACKAGE / "data"

# The root of the checkout that this package belongs to; None if it was installed from a wheel.
CHECKOUT: Path | None = None if _INSIDE.is_dir() else _PACKAGE.parent
DATA: Path = CHECKOUT / "data" if CHECKOUT else _INSIDE
# The JavaScript and the style of the book's widgets, which JupyterLab shows too.
WIDGETS: Path = CHECKOUT / "book" / "widgets" if CHECKOUT else _PACKAGE / "widgets" / "page"

"""Gives the pages a figure's version for phones, and the values that its reader can ask for."""

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

import nbformat

MIME = "application/vnd.labkernels.figure+json"
PHONE = "(max-width: 576px)"
_STARTUP = """\
from IPython import get_ipython


def versions(figure):
    from labkernels.plots import page

    return page.versions(figure), {}


bundles = get_ipython().display_formatter.mimebundle_formatter
bundles.for_type_by_name("matplotlib.figure", "Figure", versions)
del get_ipython, bundles, versions
"""
_DRAWN = re.compile(r'<img\b[^>]*\bsrc="(?:\.\./)*_images/(\w+)\.svg"[^>]*>')
_IMAGE = re.compile(r'<img\b[^>]*\bsrc="(?:\.\./)*_images/([0-9a-f]{64})\.svg"[^>]*>')


def begin_in(ipython: Path) -> None:
    """Lets every kernel that uses this folder of IPython draw all versions of a figure."""
    startup = ipython / "profile_default" / "startup" / "page_figures.py"
    startup.parent.mkdir(parents=True, exist_ok=True)
    startup.write_text(_STARTUP)


def require_all(notebook: nbformat.NotebookNode) -> None:
    """Holds that each figure has its versions.

    Raises: ValueError with the words of the error that drawing one had.
    """
    for cell in notebook.cells:
        outputs = cell.get("outputs", [])
        if any("image/png" in data and MIME not in data for data in _data(outputs)):
            words = [" ".join(o.traceback) for o in outputs if o.output_type == "error"]
            raise ValueError(f"a figure has no version for pages: {' '.join(words)}")


def without_versions(notebook: nbformat.NotebookNode) -> None:
    """Leaves of each figure the picture that every reader of notebooks shows."""
    for cell in notebook.cells:
        for data in _data(cell.get("outputs", [])):
            if data.pop(MIME, None) is not None:
                data.pop("image/svg+xml", None)


def add_to(pages: Path, notebooks: Path) -> None:
    """Writes the versions beside the pictures of built pages, and makes the pages name them."""
    series = {}
    for path in sorted(notebooks.glob("*.ipynb")):
        for name, figure in _figures(path):
            (pages / "_images" / f"{name}.narrow.svg").write_text(figure["narrow"])
            series[name] = bool(figure["series"])
            if figure["series"]:
                text = json.dumps(figure["series"], separators=(",", ":"), ensure_ascii=False)
                script = f"(globalThis.lab_assets ??= {{}})[{_asset(name)!r}] = {text};\n"
                (pages / "_static" / "lab" / f"{_asset(name)}.js").write_text(script)
    for page in pages.glob("notebooks/*.html"):
        text = page.read_text(encoding="utf-8")
        page.write_text(_IMAGE.sub(lambda image: _picture(image, series), text), encoding="utf-8")
    drawn = {path.name.partition(".")[0] for path in pages.glob("_static/*.narrow.svg")}
    for page in pages.glob("book/*.html"):
        text = page.read_text(encoding="utf-8")
        page.write_text(_DRAWN.sub(lambda image: _static(image, drawn), text), encoding="utf-8")


def _static(image: re.Match[str], drawn: set[str]) -> str:
    """A picture of book/pictures.py, with its version for phones if it has one."""
    if image[1] not in drawn:
        return image[0]
    source = f'<source media="{PHONE}" srcset="../_static/{image[1]}.narrow.svg">'
    return f"<picture>{source}{image[0]}</picture>"


def _picture(image: re.Match[str], series: dict[str, bool]) -> str:
    name = image[1]
    if name not in series:
        return image[0]
    values = f'data-values="{_asset(name)}" ' if series[name] else ""
    shown = image[0].replace("<img ", f'<img data-figure="" {values}', 1)
    source = f'<source media="{PHONE}" srcset="../_images/{name}.narrow.svg">'
    return f"<picture>{source}{shown}</picture>"


def _figures(path: Path) -> Iterator[tuple[str, dict]]:
    """The figures of a notebook, by the names that MyST-NB gives their files."""
    for cell in nbformat.read(path, 4).cells:
        for data in _data(cell.get("outputs", [])):
            if MIME in data:
                text = "\n".join(data["image/svg+xml"].splitlines())
                yield hashlib.sha256(text.encode()).hexdigest(), data[MIME]


def _asset(name: str) -> str:
    return f"figure.{name[:16]}"


def _data(outputs: list) -> list[dict]:
    return [output["data"] for output in outputs if "data" in output]

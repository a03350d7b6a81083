"""Gives the pages a figure's version for phones, and the values that its reader can ask for."""

import hashlib
import html
import json
import re
from collections.abc import Iterator
from pathlib import Path

import nbformat

MIME = "application/vnd.labkernels.figure+json"
PHONE = "(max-width: 576px)"
# Without JavaScript a figure of a chapter stands in the place of each widget: the figures' names.
STILLS = {
    "bits": "spacing",
    "break_kernel": "detection",
    "budget": "onoff-budget",
    "run_kernel": "onoff-places",
    "step_kernel": "pipeline-trace",
    "tolerance": "detection",
}
_STARTUP = f"""\
import sys

from IPython import get_ipython

sys.path.append({str(Path(__file__).parent)!r})


def versions(figure):
    import versions

    return versions.versions(figure), {{}}


bundles = get_ipython().display_formatter.mimebundle_formatter
bundles.for_type_by_name("matplotlib.figure", "Figure", versions)
del get_ipython, bundles, sys, versions
"""
_SIZE = re.compile(r'viewBox="0 0 ([\d.]+) ([\d.]+)"')
_WORDS = re.compile(r"font(?:-size)?: ?(?:bold |italic |\d{3} )*([\d.]+)px")
LEAST_PIXELS = 8  # of the smallest words of a figure where a page is wide
_DRAWN = re.compile(r'<img\b[^>]*\bsrc="(?:\.\./)*_images/(\w+)\.svg"[^>]*>')
_WIDGET = re.compile(r'<div class="lab-widget" data-lab-widget="(\w+)"[^>]*>')
_IMAGE = re.compile(r'<img\b[^>]*\bsrc="(?:\.\./)*_images/([0-9a-f]{64})\.svg"[^>]*>')


def begin_in(ipython: Path) -> None:
    """Lets every kernel that uses this folder of IPython draw all versions of a figure."""
    startup = ipython / "profile_default" / "startup" / "page_figures.py"
    startup.parent.mkdir(parents=True, exist_ok=True)
    startup.write_text(_STARTUP)


def require_all(notebook: nbformat.NotebookNode) -> None:
    """Checks that each figure has its versions.

    Raises: ValueError with the error of the figure that was not drawn.
    """
    for cell in notebook.cells:
        outputs = cell.get("outputs", [])
        if any("image/png" in data and MIME not in data for data in _data(outputs)):
            words = [" ".join(o.traceback) for o in outputs if o.output_type == "error"]
            raise ValueError(f"a figure has no version for pages: {' '.join(words)}")


def without_versions(notebook: nbformat.NotebookNode) -> None:
    """Keeps, of each figure, only the picture that every program for notebooks shows."""
    for cell in notebook.cells:
        for data in _data(cell.get("outputs", [])):
            if data.pop(MIME, None) is not None:
                data.pop("image/svg+xml", None)


def add_to(pages: Path, notebooks: Path) -> None:
    """Writes the versions beside the pictures of built pages, and makes the pages name them."""
    figures, stills = {}, {}
    for path in sorted(notebooks.glob("*.ipynb")):
        for name, figure, cell in _figures(path):
            stills[cell.get("figure", {}).get("name")] = _still(path.stem, name, cell)
            if not figure.get("pixels"):
                (pages / "_images" / f"{name}.narrow.svg").write_text(figure["narrow"])
            figures[name] = figure
            if figure["series"]:
                text = json.dumps(figure["series"], separators=(",", ":"), ensure_ascii=False)
                script = f"(globalThis.lab_assets ??= {{}})[{_asset(name)!r}] = {text};\n"
                (pages / "_static" / "lab" / f"{_asset(name)}.js").write_text(script)
    drawn = {path.name.partition(".")[0] for path in pages.glob("_static/*.narrow.svg")}
    for page in (*pages.glob("notebooks/*.html"), *pages.glob("book/*.html")):
        text = _IMAGE.sub(lambda image: _picture(image, figures), page.read_text(encoding="utf-8"))
        text = _DRAWN.sub(lambda image: _static(image, drawn), text)
        text = _WIDGET.sub(lambda place: place[0] + stills.get(STILLS.get(place[1]), ""), text)
        page.write_text(text, encoding="utf-8")


def _still(chapter: str, name: str, cell: dict) -> str:
    """Returns a figure of a chapter as another page shows it where no JavaScript runs."""
    words = html.escape(cell.get("image", {}).get("alt", ""))
    where = f'<a href="../notebooks/{chapter}.html">This figure stands in a chapter.</a>'
    image = f'<img src="../_images/{name}.svg" alt="{words}">'
    return f"<noscript><figure>{image}<figcaption>{where}</figcaption></figure></noscript>"


def _static(image: re.Match[str], drawn: set[str]) -> str:
    """Returns a picture of book/pictures.py, with its version for phones if it has one."""
    if image[1] not in drawn:
        return image[0]
    source = f'<source media="{PHONE}" srcset="../_static/{image[1]}.narrow.svg">'
    return f"<picture>{source}{image[0]}</picture>"


def _picture(image: re.Match[str], figures: dict[str, dict]) -> str:
    """Returns a figure with its version for phones, or with the width that its words need."""
    name = image[1]
    if name not in figures:
        return image[0]
    values = f'data-values="{_asset(name)}" ' if figures[name]["series"] else ""
    shown = image[0].replace("<img ", f'<img data-figure="" {values}', 1)
    figure = figures[name]
    least = figure.get("pixels") or figure["least"]
    look = f'style="--lab-ratio: {figure["ratio"]:.3f}; --lab-least: {least:.0f}px"'
    if figure.get("pixels"):
        return f'<picture class="lab-dense" {look}>{shown}</picture>'
    source = f'<source media="{PHONE}" srcset="../_images/{name}.narrow.svg">'
    return f"<picture {look}>{source}{shown}</picture>"


def _figures(path: Path) -> Iterator[tuple[str, dict, dict]]:
    """Yields the figures of a notebook: the name of MyST-NB's file, versions, words of the cell."""
    for cell in nbformat.read(path, 4).cells:
        for data in _data(cell.get("outputs", [])):
            if MIME in data:
                text = "\n".join(data["image/svg+xml"].splitlines())
                width, height = map(float, _SIZE.search(text).groups())
                words = min(map(float, _WORDS.findall(text)), default=LEAST_PIXELS)
                sizes = {"ratio": width / height, "least": width * LEAST_PIXELS / words}
                yield (
                    hashlib.sha256(text.encode()).hexdigest(),
                    data[MIME] | sizes,
                    cell.metadata.get("mystnb", {}),
                )


def _asset(name: str) -> str:
    return f"figure.{name[:16]}"


def _data(outputs: list) -> list[dict]:
    return [output["data"] for output in outputs if "data" in output]

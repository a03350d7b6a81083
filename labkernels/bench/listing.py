"""Listings from the real sources of kernels, for notebooks."""

import ast
import html
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

from labkernels.kernels.registry import discover

_MARKED = re.compile(
    r"^[^\n]*\[lab: (?P<name>[^\]]+)\][^\n]*\n(?P<text>.*?)^[^\n]*\[/lab: (?P=name)\]", re.M | re.S
)


def source(kernel: str, part: str) -> "Listing":
    """Return a marked part of a kernel's CUDA source, or a function of its Triton source.

    Raises: ValueError listing the kernels or parts that exist.

    >>> print(source("decode_mma", "scores").title)
    decode_mma: scores
    """
    kernels = discover()
    if kernel not in kernels:
        raise ValueError(f"kernel = {kernel!r}, allowed: {', '.join(kernels)}")
    parts = {}
    for path in _files(kernels[kernel].folder):
        for name, text in _parts(path):
            parts.setdefault(name, (path, text))
    if part not in parts:
        allowed = ", ".join(parts) or "none"
        raise ValueError(f"part = {part!r}, allowed for {kernel}: {allowed}")
    path, text = parts[part]
    return Listing(
        f"{kernel}: {part}", textwrap.dedent(text), "c++" if path.suffix == ".cuh" else "python"
    )


class Listing:
    """Lines of a source, which notebooks show highlighted."""

    def __init__(self, title: str, text: str, language: str) -> None:
        self.title, self.text, self.language = title, text, language

    def __str__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        """Return HTML with the classes of Pygments, which JupyterLab and the book colour."""
        from pygments import highlight
        from pygments.formatters import HtmlFormatter
        from pygments.lexers import get_lexer_by_name

        lines = highlight(self.text, get_lexer_by_name(self.language), HtmlFormatter())
        return f"<p><strong>{html.escape(self.title)}</strong></p>\n{lines}"

    def _repr_markdown_(self) -> str:
        return f"**{self.title}**\n\n```{self.language}\n{self.text}```\n"


def _files(folder: Path) -> list[Path]:
    """Return a kernel's own sources, and the sources that the kernels of its operation share."""
    shared = [folder.parent, folder.parents[1] / "packed_gqa"]
    return [
        path
        for place in (folder, *shared)
        for path in sorted(place.glob("*"))
        if path.suffix == ".cuh" or path.name == "kernel.py"
    ]


def _parts(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the names and texts of a file's parts: marked regions in C++, functions in Python."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".cuh":
        yield from ((found["name"], found["text"]) for found in _MARKED.finditer(text))
        return
    lines = text.splitlines(keepends=True)
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            yield node.name, "".join(lines[first - 1 : node.end_lineno])

"""The sentences of the book, of which the page of search results shows those that were looked for.

They are one script, since a page that is opened from a disk may read no other page.
"""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

from mend import SEARCH_PAGE

_BLOCKS = {"p", "li", "dd", "figcaption", "caption"}
_LEFT_OUT = {
    "script",
    "style",
    "svg",
    "summary",
    "pre",
    "nav",
    "table",
    "dt",
    "h1",
    "h2",
    "h3",
    "h4",
}
_ALONE = {"br", "img", "input", "hr", "wbr", "source", "col", "link", "meta"}


class Texts(HTMLParser):
    """The texts of an article: (name of the section, words) in the order of the page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, str]] = []
        self._open: list[tuple[str, str]] = []  # tags, with the section in which each stands
        self._section, self._words, self._left_out = "", [], 0
        self._inside = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Notes the section that begins here, or the block."""
        self._inside = self._inside or tag == "article"
        if tag in _ALONE or not self._inside:
            self._words += " " * (tag == "br")
            return
        name = dict(attrs).get("id")
        if tag in _BLOCKS:
            self._end_block()
        self._open.append((tag, self._section))
        self._left_out += tag in _LEFT_OUT
        if name and (tag in {"section", "dt"} or (tag == "div" and not self._left_out)):
            self._section = name

    def handle_endtag(self, tag: str) -> None:
        """Ends a block, and a section, but not the name of a term, whose text follows."""
        while self._inside and any(tag == each for each, _ in self._open):
            ended, before = self._open.pop()
            self._left_out -= ended in _LEFT_OUT
            if ended in _BLOCKS:
                self._end_block()
            if ended != "dt":
                self._section = before
            if ended == tag:
                break
        self._inside = self._inside and tag != "article"

    def handle_data(self, data: str) -> None:
        """Takes words, but none of code, pictures and headings."""
        if self._inside and not self._left_out:
            self._words.append(data)

    def _end_block(self) -> None:
        text = re.sub(r"\s+", " ", "".join(self._words)).strip()
        self._words = []
        if re.search(r"[^\W\d_]{3}", text):
            self.found.append((self._section, text))


def add_to(pages: Path) -> None:
    """Gives the page of search results the book's sentences and the script that uses them."""
    found = {}
    for path in sorted(pages.rglob("*.html")):
        if texts := Texts(path.read_text(encoding="utf-8")).found:
            found[str(path.relative_to(pages).with_suffix(""))] = texts
    data = json.dumps(found, ensure_ascii=False, separators=(",", ":"))
    (pages / "_static").mkdir(exist_ok=True)
    (pages / "_static" / "texts.js").write_text(f"const lab_texts = {data};\n", encoding="utf-8")
    page = pages / SEARCH_PAGE
    scripts = "".join(f'<script src="_static/{n}.js"></script>\n' for n in ("texts", "sentences"))
    page.write_text(page.read_text(encoding="utf-8").replace("</head>", f"{scripts}</head>", 1))

"""The words of the book, of which the page of search results offers the nearest for a typo."""

import collections
import html
import json
import re
from pathlib import Path

from mend import SEARCH_PAGE

FEWEST = 2  # occurrences of a word, since a word that occurs once may be a typo itself
_WORD = re.compile(r"[a-z][a-z0-9_]{3,23}")
_ARTICLE = re.compile(r"<article.*?</article>", re.DOTALL)
_TAG = re.compile(r"<(script|style|svg).*?</\1>|<[^>]*>", re.DOTALL)


def words(texts: list[str]) -> list[str]:
    """Returns the words of some pages' articles, the most frequent first."""
    counts: collections.Counter[str] = collections.Counter()
    for text in texts:
        for article in _ARTICLE.findall(text):
            counts.update(_WORD.findall(html.unescape(_TAG.sub(" ", article)).lower()))
    return [word for word, n in counts.most_common() if n >= FEWEST]


def add_to(pages: Path) -> None:
    """Gives the page of search results the book's words and the script that uses them."""
    found = words([p.read_text(encoding="utf-8") for p in sorted(pages.rglob("*.html"))])
    (pages / "_static").mkdir(exist_ok=True)
    (pages / "_static" / "words.js").write_text(f"const lab_words = {json.dumps(found)};\n")
    page = pages / SEARCH_PAGE
    scripts = "".join(
        f'<script src="_static/{n}.js"></script>\n' for n in ("words", "did_you_mean")
    )
    page.write_text(page.read_text(encoding="utf-8").replace("</head>", f"{scripts}</head>", 1))

"""What a page adds to its tables and lists: numbers at the right, and folds of long ones.

Of a long table, and of the changelog, a page shows the first entries, and the rest when its reader
asks for them. The style sheet hides these, so that every entry is in the page, and on paper.
"""

import html
import re
from pathlib import Path

MOST_ROWS, MOST_ITEMS = 20, 30  # beyond which a page folds them, as lab.css says
_TABLE = re.compile(r"<table\b(?P<more>[^>]*)>.*?</table>", re.DOTALL)
_PART = re.compile(r"<t(?:head|body)\b.*?</t(?:head|body)>", re.DOTALL)
_ROW = re.compile(r"<tr\b.*?</tr>", re.DOTALL)
_CELL = re.compile(r"<(?P<tag>t[hd])(?P<more>[^>]*)>(?P<text>.*?)</(?P=tag)>", re.DOTALL)
_SPAN = re.compile(r'\b(?:col|row)span="?(?!1\b)\d')
_TAG = re.compile(r"<[^>]*>")
_SIGN = r"[-−+±≈~<>≤≥×]*\s*"
_DIGITS = r"\d[\d,.]*(?:e[-+]?\d+|\^-?\d+)?"
_NUMBER = re.compile(
    rf"\[?{_SIGN}{_DIGITS}(?:\s*(?:to|of|[-–/])\s*{_SIGN}{_DIGITS})*"
    r"\s*(?:%|°|×|x|[a-zA-Zµ]{1,4}(?:/[a-zA-Z]{1,2})?)?\]?"
)
_NONE = {"", "-", "–", "—", "−", "nan", "none", "inf", "="}
_LIST = re.compile(r"<ul\b[^>]*>.*?</ul>", re.DOTALL)


def arrange(pages: Path) -> None:
    """Arranges the tables of all pages, and the changelog's list, in place."""
    for path in pages.rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        arranged = _TABLE.sub(_arranged, text)
        if path.name == "changelog.html":
            arranged = _LIST.sub(lambda found: folded(found[0], "li", MOST_ITEMS), arranged)
        path.write_text(arranged, encoding="utf-8")


def _arranged(found: re.Match[str]) -> str:
    if "indextable" in found["more"]:
        return found[0]
    aligned = with_numbers(found[0])
    inside = found.string.rfind("<details", 0, found.start()) > found.string.rfind(
        "</details>", 0, found.start()
    )
    return aligned if inside else folded(aligned, "tr", MOST_ROWS)


def with_numbers(table: str) -> str:
    """Returns a table whose columns of numbers, with their heads, have the class `lab-number`.

    A table in which a cell spans several rows or columns stays as it is.
    """
    if _SPAN.search(table):
        return table
    bodies = [part for part in _PART.findall(table) if part.startswith("<tbody")] or [table]
    columns: dict[int, list[str]] = {}
    for row in _ROW.findall("".join(bodies)):
        for i, cell in enumerate(_CELL.finditer(row)):
            columns.setdefault(i, []).append(html.unescape(_TAG.sub("", cell["text"])).strip())
    numbers = {i for i, texts in columns.items() if is_numbers(texts)}

    def row(found: re.Match[str]) -> str:
        cells = iter(range(len(columns)))

        def cell(each: re.Match[str]) -> str:
            if next(cells, -1) not in numbers:
                return each[0]
            more = each["more"].replace('class="', 'class="lab-number ', 1)
            if more == each["more"]:
                more += ' class="lab-number"'
            return f"<{each['tag']}{more}>{each['text']}</{each['tag']}>"

        return _CELL.sub(cell, found[0])

    return _ROW.sub(row, table) if numbers else table


def is_numbers(texts: list[str]) -> bool:
    """Returns whether these cells hold a number at least once, and nothing but numbers."""
    filled = [text for text in texts if text.lower() not in _NONE]
    return bool(filled) and all(map(_NUMBER.fullmatch, filled))


def folded(text: str, tag: str, most: int) -> str:
    """Returns a table or a list, of which the style sheet hides a part if it has more entries."""
    body = text[text.index("<tbody") :] if "<tbody" in text else text
    n = len(re.findall(rf"<{tag}\b", body))
    if n <= most:
        return text
    name = "rows" if tag == "tr" else "entries"
    lid = f"<summary><span>All {n} {name}</span><span>The first {name}</span></summary>"
    return f'<div class="lab-fold">{text}<details>{lid}</details></div>'

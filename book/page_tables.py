"""What a page adds to its tables, lists and outputs: numbers at the right, and folds of long ones.

Of a long table, of a long printed output and of the changelog, a page shows the beginning, and the
rest when its reader asks for it. The style sheet hides the rest, so that all of it is in the page,
and on paper.
"""

import html
import re
from pathlib import Path

MOST_ROWS, MOST_ITEMS, MOST_LINES = 20, 30, 24  # beyond which a page folds
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
_OUTPUT = re.compile(
    r'(<div class="output (?:stream|text_plain)[^>]*><div[^>]*>)(<pre>.*?</pre>)', re.DOTALL
)
_LIST = re.compile(r'<ul class="simple">.*?</ul>', re.DOTALL)


def arrange(pages: Path) -> None:
    """Arranges the tables, outputs and lists of all pages in place."""
    for path in pages.rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        arranged = _OUTPUT.sub(_output, _TABLE.sub(_table, text))
        if path.name == "changelog.html":
            arranged = _LIST.sub(_list, arranged)
        path.write_text(arranged, encoding="utf-8")


def _table(found: re.Match[str]) -> str:
    table, text, at = found[0], found.string, found.start()
    if "indextable" in found["more"]:
        return table
    aligned = with_numbers(table)
    if text.rfind("<details", 0, at) > text.rfind("</details>", 0, at):  # it has a lid
        return aligned
    n_rows = table.partition("<tbody")[2].count("<tr")
    return folded(aligned, n_rows, MOST_ROWS, "rows")


def _output(found: re.Match[str]) -> str:
    return f"{found[1]}{folded(found[2], found[2].count(chr(10)), MOST_LINES, 'lines')}"


def _list(found: re.Match[str]) -> str:
    return folded(found[0], found[0].count("<li"), MOST_ITEMS, "entries")


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


def folded(text: str, n: int, most: int, name: str) -> str:
    """Returns what the style sheet shows in part, if it has more entries than these."""
    if n <= most:
        return text
    lid = f"<summary><span>All {n} {name}</span><span>The first {name}</span></summary>"
    return f'<div class="lab-fold">{text}<details>{lid}</details></div>'

"""Draws the formulas of pages when the book is built, so that a page needs no script for them.

A formula becomes HTML, as MathJax writes it, with MathML for screen readers. Where node is not
installed, pages keep MathJax, which draws their formulas in the browser.
"""

import html
import re
import shutil
from pathlib import Path

import node

DRAW = Path(__file__).with_name("draw_math.cjs")
STYLE = "_static/math.css"
_FORMULA = re.compile(
    r'<(?P<tag>div|span) class="math notranslate nohighlight"(?P<more>[^>]*)>'
    r"(?P<number>\s*<span class=\"eqno\">.*?</span>)?\s*"
    r"\\[\[(](?P<tex>.*?)\\[\])]\s*</(?P=tag)>",
    re.DOTALL,
)
_SCRIPT = re.compile(
    r"<script>window\.MathJax = [^<]*</script>\s*|"
    r'<script[^>]*\bsrc="(?P<static>[^"]*_static/)mathjax/[^>]*></script>\s*'
)


def draw(pages: Path) -> str:
    """Draws the formulas of all pages in place; returns in words what was done.

    Raises: RuntimeError naming a formula that MathJax cannot read.
    """
    mathjax = pages / "_static" / "mathjax"
    if not node.is_available():
        return "formulas: drawn by MathJax in the pages, since node is not installed"
    texts = {path: path.read_text(encoding="utf-8") for path in pages.rglob("*.html")}
    formulas = list(dict.fromkeys(f for text in texts.values() for f in formulas_of(text)))
    if not formulas:
        return "formulas: none"
    given = [[tex, tag == "div"] for tag, tex in formulas]
    made = node.run(DRAW, mathjax.resolve(), given=given)
    drawn = dict(zip(formulas, made["formulas"], strict=True))
    for path, text in texts.items():
        path.write_text(with_formulas(text, drawn), encoding="utf-8")
    (mathjax / "output" / "chtml" / "fonts" / "woff-v2").rename(pages / "_static" / "math")
    (pages / STYLE).write_text(made["style"], encoding="utf-8")
    shutil.rmtree(mathjax)
    return f"formulas: {len(formulas)}, drawn without a script"


def formulas_of(text: str) -> list[tuple[str, str]]:
    """Returns the formulas of a page: the tag around each, and its TeX."""
    return [
        (found["tag"], html.unescape(found["tex"]).strip()) for found in _FORMULA.finditer(text)
    ]


def with_formulas(text: str, drawn: dict[tuple[str, str], str]) -> str:
    """Returns a page with its formulas drawn, and with their style in the place of MathJax."""

    def formula(found: re.Match[str]) -> str:
        tag = found["tag"]
        inside = drawn[tag, html.unescape(found["tex"]).strip()]
        start = f'<{tag} class="math notranslate nohighlight"{found["more"]}>'
        return f"{start}{found['number'] or ''}{inside}</{tag}>"

    def style(found: re.Match[str]) -> str:
        if not found["static"]:
            return ""
        href = f"{found['static']}{STYLE.removeprefix('_static/')}"
        return f'<link rel="stylesheet" type="text/css" href="{href}" />\n'

    return _SCRIPT.sub(style, _FORMULA.sub(formula, text))

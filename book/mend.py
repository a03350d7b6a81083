"""Mends the pages that Sphinx and its theme write: names for assistive technology, no dead scripts.

Each mend is an edit that the theme, sphinx-book-theme 1.3, needs; tests/site checks the pages with
axe-core and by the browser's console.
"""

import re
from pathlib import Path

SEARCH_PAGE = "search.html"
_MENDS = [
    # thebe is off, and its settings are declared twice, which is an error in the console
    (r"<script>const THEBE_JS_URL.*?</script>\s*", ""),
    (r'<script[^>]*\bsrc="[^"]*sphinx-thebe\.js[^>]*></script>\s*', ""),
    (r'<script type="text/x-thebe-config">.*?</script>\s*', ""),
    (r"<script>kernelName = [^<]*</script>\s*", ""),
    (r'<link[^>]*href="[^"]*sphinx-thebe\.css[^>]*>\s*', ""),
    # cards, grids and tabs, of which a page has none
    (r'<link[^>]*href="[^"]*sphinx-design\.min\.css[^>]*>\s*(?!.*class="[^"]*\bsd-)', ""),
    (r'<script[^>]*\bsrc="[^"]*design-tabs\.js[^>]*></script>\s*(?!.*class="[^"]*\bsd-)', ""),
    # icons come from the style's font; the script would draw the same ones again
    (r'<script[^>]*\bsrc="[^"]*fontawesome\.js[^>]*></script>\s*', ""),
    # a preload, by which a page that is opened from a disk loads each script twice
    (r'<link rel="preload" as="script"[^>]*>\s*', ""),
    # a name that differs from the words that are seen
    (r'<summary aria-label="Toggle hidden content">', "<summary>"),
    (r'(class="[^"]*search-button-field[^"]*" title="Search") aria-label="Search"', r"\1"),
    (r'(<i class="theme-switch [^>]*?) title="[^"]*"', r'\1 aria-hidden="true"'),
    # lids over code and outputs, of which a chapter has dozens
    (r"(?:Show|Hide) code cell (?:source|content)(?=</p>)", "Code"),
    (r"(?:Show|Hide) code cell outputs?(?=</p>)", "Output"),
    # a heading without words
    (r"<h1>\s*</h1>", ""),
    # a control without a name
    (
        r'<summary>(<span class="toctree-toggle" role="presentation">)',
        r'<summary aria-label="Pages of this section">\1',
    ),
    # a part of the page that lies in no landmark
    (
        r'<div id="pst-primary-sidebar"(?! role)',
        '<div id="pst-primary-sidebar" role="region" aria-label="Sidebar"',
    ),
    # a corner of a table is no header
    (r"<th([^>]*)>\s*(?:<p>\s*</p>)?\s*</th>", r"<td\1></td>"),
    # a role that ARIA has deprecated, and that of the list around it
    (r' role="doc-biblioentry"', ""),
    (r' role="list" class="citation-list"', ' class="citation-list"'),
    # an equation that is wider than the page scrolls by keyboard too
    (r'<div class="[^"]*\bmath notranslate nohighlight"(?! tabindex)', r'\g<0> tabindex="0"'),
    # a map that is wider than a phone
    (r'<figure (class="[^"]*" id="book-map")', r'<figure tabindex="0" \1'),
    # a chapter is edited in its script, from which the notebook is written
    (r'(href="[^"]*/edit/[^"]*/notebooks/\w+)\.ipynb"', r'\1.py"'),
    # a line that only marks where another listing begins or ends
    (
        r'\n(?:<span class="w"> *</span>)?<span class="c1">(?://|#) \[/?lab: [^<]*</span>(?=\n)',
        "",
    ),
    # a script in an attribute, which presses.js replaces
    (r' onclick="(?:window\.)?(\w+)\(\)"', r' data-press="\1"'),
    # math is drawn without MathJax's menu
    (r"mathjax/tex-chtml\.js", "mathjax/startup.js"),
]
# Only the page of results searches; on others a form leads there.
_SEARCHES = (
    r'<script src="[^"]*(?:searchtools|language_data|searchindex)\.js"[^>]*></script>\s*',
    "",
)


def mend(pages: Path) -> None:
    """Mends every page of a folder in place."""
    for path in pages.rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        mends = _MENDS if path.name == SEARCH_PAGE else [*_MENDS, _SEARCHES]
        for pattern, by in mends:
            text = re.sub(pattern, by, text, flags=re.DOTALL)
        path.write_text(text, encoding="utf-8")

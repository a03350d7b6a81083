"""Formulas are drawn by the MathJax that the book is built with, in HTML and in MathML."""

import importlib.util
import shutil
from pathlib import Path

import node
import page_math
import pytest

MATHJAX = Path(importlib.util.find_spec("sphinx-mathjax-offline").origin).parent / "static"
PAGE = """<script>window.MathJax = {"a": 1}</script>
<script defer="defer" src="../_static/mathjax/tex-chtml.js"></script>
<p>of <span class="math notranslate nohighlight">\\(a &lt; \\sqrt{b}\\)</span>.</p>
<div class="math notranslate nohighlight" id="equation-one">
<span class="eqno">(1)<a href="#equation-one">#</a></span>\\[\\begin{split}
x &amp;= \\frac{1}{2}
\\end{split}\\]</div>"""


@pytest.fixture
def pages(tmp_path):
    if not node.is_available():
        pytest.skip("node is not installed")
    (tmp_path / "book").mkdir()
    (tmp_path / "_static").mkdir()
    shutil.copytree(MATHJAX / "mathjax", tmp_path / "_static" / "mathjax")
    return tmp_path


def test_a_page_has_its_formulas_without_a_script(pages):
    page = pages / "book" / "page.html"
    page.write_text(PAGE)
    assert page_math.draw(pages) == "formulas: 2, drawn without a script"
    text = page.read_text()
    assert "<script" not in text
    assert "\\" not in text
    assert text.count("<mjx-container") == 2
    assert "<msqrt><mi>b</mi></msqrt>" in text  # for screen readers
    assert '(1)<a href="#equation-one">' in text
    assert 'href="../_static/math.css"' in text
    style = (pages / "_static" / "math.css").read_text()
    assert 'url("math/MathJax_Math-Italic.woff")' in style
    assert (pages / "_static" / "math" / "MathJax_Math-Italic.woff").is_file()
    assert not (pages / "_static" / "mathjax").exists()


def test_a_formula_that_cannot_be_read_is_named(pages):
    (pages / "book" / "page.html").write_text(PAGE.replace("sqrt", "nonsense"))
    with pytest.raises(RuntimeError, match="nonsense"):
        page_math.draw(pages)


def test_without_node_pages_keep_mathjax(tmp_path, monkeypatch):
    monkeypatch.setattr(node.shutil, "which", lambda _: None)
    (tmp_path / "page.html").write_text(PAGE)
    assert "node is not installed" in page_math.draw(tmp_path)
    assert (tmp_path / "page.html").read_text() == PAGE

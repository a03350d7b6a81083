"""After Sphinx, pages are mended and made lighter, and the search page offers words."""

import base64
import io
import json
import shutil
import subprocess

import lighten
import mend
import nbformat
import pytest
import search_sentences
import search_words
from PIL import Image, ImageDraw

SCRIPTS = mend.Path(mend.__file__).parent / "_static"
DESIGN = (
    '<link href="../_static/sphinx-design.min.css?v=1" />'
    '<script data-sd-tabs="a" src="../_static/design-tabs.js?v=1"></script>'
)
THEBE = '<script>const THEBE_JS_URL = "x"; const thebe_selector = ".thebe"</script>\n'


@pytest.fixture
def pages(tmp_path):
    texts = {
        "index.html": '<link href="_static/a.css"><i class="fa-solid fa-bars"></i>',
        "search.html": "<head></head><article>a</article>",
        "_static/a.css": '.fa-bars:before{content:"\\f0c9"}.fa-house:before{content:"\\f015"}',
        "_static/a.css.map": "{}",
        "_static/mathjax/startup.js": "kept",
        "_static/mathjax/tex-svg.js": "not loaded",
    }
    for name, text in texts.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def mended(pages, text, name="index.html"):
    (pages / name).write_text(text)
    mend.mend(pages)
    return (pages / name).read_text()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            '<p class="collapsed admonition-title">Show code cell source</p>',
            '<p class="collapsed admonition-title">Code</p>',
        ),
        (THEBE + "a" + THEBE, "a"),
        ('<th class="head"><p></p></th>', '<td class="head"></td>'),
        ("<th>name</th>", "<th>name</th>"),
        ('<summary aria-label="Toggle hidden content">Show</summary>', "<summary>Show</summary>"),
        ('<button onclick="window.print()">', '<button data-press="print">'),
        ('<div role="list" class="citation-list">', '<div class="citation-list">'),
        ('<script src="../searchindex.js"></script>', ""),
        (
            '{\n<span class="w">  </span><span class="c1">// [/lab: overlap]</span>\n}',
            "{\n}",
        ),
        ('{\n<span class="c1">// [3 keys]</span>\n}', '{\n<span class="c1">// [3 keys]</span>\n}'),
        (f"{DESIGN}<p>a</p>", "<p>a</p>"),
        (f'{DESIGN}<p class="a sd-card">', f'{DESIGN}<p class="a sd-card">'),
        ('<a href="h/edit/main/notebooks/a_b.ipynb">', '<a href="h/edit/main/notebooks/a_b.py">'),
        (
            '<a href="../_sources/notebooks/a_b.ipynb">',
            '<a href="../_sources/notebooks/a_b.ipynb">',
        ),
    ],
)
def test_a_page_is_mended(pages, before, after):
    assert mended(pages, before) == after


def test_mending_twice_changes_nothing_and_results_keep_what_searches(pages):
    sidebar = '<div id="pst-primary-sidebar" class="bd-sidebar">'
    equation = '<div class="math notranslate nohighlight" id="e">'
    once = mended(pages, sidebar + equation)
    assert mended(pages, once) == once != sidebar + equation
    search = '<script src="searchindex.js"></script>'
    assert mended(pages, search, "search.html") == search


def ramps(below=None):
    """Return a picture of many colours, as PNG, of which the top is white or clear."""
    bands = [Image.radial_gradient("L").resize((400, 300)).rotate(20 * i) for i in range(3)]
    picture = Image.merge("RGBA", [*bands, Image.new("L", (400, 300), 255)])
    ImageDraw.Draw(picture).rectangle((0, 0, 399, 100), fill=below or "white")
    file = io.BytesIO()
    picture.save(file, "PNG")
    return file.getvalue()


def test_a_figure_gets_a_palette_and_keeps_its_white_and_what_is_seen_through(pages):
    path, svg = pages / "figure.png", pages / "_images" / "a.svg"
    path.write_bytes(ramps())
    lighten.with_palette(path)
    with Image.open(path) as found:
        assert found.mode == "P"
        assert found.convert("RGB").getpixel((399, 0)) == (255, 255, 255)
    assert path.stat().st_size < len(ramps())
    svg.parent.mkdir()
    data = base64.b64encode(ramps((0, 0, 0, 0))).decode()
    svg.write_text(f'<svg><image href="data:image/png;base64,{data}"/></svg>')
    lighten.lighten(pages)
    text = svg.read_text()
    with Image.open(io.BytesIO(base64.b64decode(lighten._EMBEDDED.search(text)[1]))) as picture:
        assert picture.mode == "P"
        assert picture.convert("RGBA").getpixel((200, 50))[3] == 0
        assert picture.convert("RGBA").getpixel((200, 200))[3] == 255
    assert len(text) < len(data) / 2


def test_a_heavy_site_is_refused_and_words_are_those_of_articles(pages, monkeypatch):
    text = "<p>nowhere nowhere</p><article>warps <b>keys</b> keys keys warps once</article>"
    assert search_words.words([text]) == ["keys", "warps"]
    search_words.add_to(pages)
    assert 'src="_static/words.js"' in (pages / "search.html").read_text()
    monkeypatch.setattr(lighten, "SITE_MOST_BYTES", 10)
    with pytest.raises(ValueError, match="allowed: 10"):
        lighten.lighten(pages)


def test_only_what_pages_load_is_left(pages):
    said = lighten.lighten(pages)
    left = {str(path.relative_to(pages)) for path in pages.rglob("*") if path.is_file()}
    assert left == {
        "index.html",
        "search.html",
        "_static/a.css",
        "_static/mathjax/startup.js",
    }
    assert (pages / "_static/a.css").read_text() == '.fa-bars:before{content:"\\f0c9"}'
    assert said.startswith("pages: ")


def test_a_notebook_to_download_has_no_outputs(pages):
    output = nbformat.v4.new_output("stream", text="long")
    cell = nbformat.v4.new_code_cell("1", outputs=[output])
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), pages / "a.ipynb")
    lighten.without_outputs(pages / "a.ipynb")
    assert nbformat.read(pages / "a.ipynb", 4).cells[0].outputs == []


@pytest.mark.parametrize(
    ("query", "offered"),
    [
        ("ocupancy", "occupancy"),
        ("tensor regiister", "tensor register"),
        ("occup", None),
        ("zzzzzz", None),
    ],
)
def test_search_survives_a_typo(query, offered):
    words = json.dumps(["tensor", "register", "occupancy"])
    call = f"console.log(JSON.stringify(did_you_mean({json.dumps(query)}, {words})))"
    assert printed("did_you_mean.js", call) == offered


def printed(script, call):
    """Return what a call prints after a script of the pages, in node."""
    if shutil.which("node") is None:
        pytest.skip("node is not installed")
    program = f"{(SCRIPTS / script).read_text()}\n{call}"
    answer = subprocess.run(["node", "-e", program], capture_output=True, text=True, check=True)
    return json.loads(answer.stdout)


ARTICLE = """<nav><p>Contents of it all</p></nav><article><p>Before all.</p>
<section id="banks"><h2>Banks<a class="headerlink">#</a></h2>
<p>Shared memory has banks. Two lanes may want <b>one</b> bank:<br>they take turns.</p>
<table><tr><td><p>12 banks</p></td></tr></table><pre>banks()</pre>
<dl><dt id="term-wave">wave</dt><dd><p>As many blocks as fit.</p></dd></dl><p>After it.</p>
</section><p>Last words.</p></article>"""


def test_texts_of_an_article_are_its_sentences_by_section():
    assert search_sentences.Texts(ARTICLE).found == [
        ("", "Before all."),
        ("banks", "Shared memory has banks. Two lanes may want one bank: they take turns."),
        ("term-wave", "As many blocks as fit."),
        ("banks", "After it."),
        ("", "Last words."),
    ]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["bank", "turns"], "Two lanes may want one bank: they take turns."),
        (["memories"], "Shared memory has banks."),
        (["nowhere"], "This is what the page is about, in one sentence."),
    ],
)
def test_search_shows_the_sentence_that_has_the_words(words, sentence):
    about = "Label. This is what the page is about, in one sentence."
    texts = [
        ["", about],
        ["banks", "Shared memory has banks. Two lanes may want one bank: they take turns."],
    ]
    call = f"console.log(JSON.stringify(sentence_of({json.dumps(texts)}, {json.dumps(words)})))"
    assert printed("sentences.js", call) == sentence


def test_a_long_sentence_is_cut_around_its_word():
    sentence = f"{'before ' * 60}needle {'after ' * 60}end."
    call = f"console.log(JSON.stringify(shortened({json.dumps(sentence)}, ['needle'])))"
    shown = printed("sentences.js", call)
    assert "needle" in shown
    assert len(shown) <= 264
    assert shown[0] == shown[-1] == "…"

"""Makes the built pages light: removes files that no page loads, shrinks pictures and icons."""

import base64
import collections
import io
import itertools
import json
import re
import string
from collections.abc import Iterator
from pathlib import Path

import nbformat
from fontTools import subset
from PIL import Image

SITE_MOST_BYTES = 22_000_000  # without what a page loads by a click
WHOLE_MOST_BYTES = 50_000_000
# First words of names in _static/lab.
_BY_CLICK = ("compiler", "python", "assignment", "edit", "writing")
_UNUSED = (
    "_static/**/*.map",
    "_static/**/*.LICENSE.txt",
    "_static/locales/**/*",
    "_static/scripts/fontawesome.js",
    "_static/sphinx-thebe.*",
    "_static/*macros.html",
    "_static/vendor/fontawesome/webfonts/*.woff2",
)
# What startup.js loads, by the settings in _config.yml: TeX in, HTML out.
_MATHJAX = (
    "startup.js",
    "core.js",
    "input/tex.js",
    "output/chtml.js",
    "output/chtml/fonts/tex.js",
    "output/chtml/fonts/woff-v2/*",
    "a11y/assistive-mml.js",
    "input/tex/extensions/*",
)
_COLOURS = 256  # in the palette of a figure
_EMBEDDED_COLOURS = 96  # in the palette of points or cells that an SVG holds as a picture
_OPAQUE, _NEARLY_WHITE = 255, 250
_EMBEDDED = re.compile(r"data:image/png;base64,([A-Za-z0-9+/=\s]+)")
_POINTS = re.compile(r'(?<= d=")[^"]+')
_FONTS = "font-family: 'DejaVu Sans', Verdana, sans-serif; "  # of almost every word
_WORDS = "text{white-space:pre}"  # in the style of a drawing
_NOTHING = re.compile(
    r' transform="rotate\(-?0 [\d.]+ [\d.]+\)"|<g/>\n?|(?<=>)\n+(?=<(?!tspan|/text))'
)
_STYLE = re.compile(r' style="([^"]+)"')
_CLIPPED = re.compile(r' clip-path="([^"]+)"(?: style="([^"]+)")?')
_ID = re.compile(r' id="([^"]+)"')
_NAMED = re.compile(r'(?<= id=")[^"]+|(?<="#)[^"]+|(?<=url\(#)[^)]+')
_GROUP = re.compile(r"<g\b[^>]*(?<!/)>|</g>")
_XLINK = ' xmlns:xlink="http://www.w3.org/1999/xlink"'
_SPACE = re.compile(r'<span class="w">(\s*)</span>')  # which a listing's style does not show
# What a page keeps as it is, else a comment or the indentation of a line.
_KEPT_OR_NOT = re.compile(r"(<(pre|textarea|script|style)\b.*?</\2>)|<!--.*?-->|\n\s+", re.DOTALL)
_ICON = re.compile(r'((?:\.fa-[a-z0-9-]+:before,?)+)\{content:"\\([0-9a-f]{2,4}) ?"\}')
_GLYPH = re.compile(r'"\\([ef][0-9a-f]{3})"|([\ue000-\uf8ff])')
_FONT = re.compile(
    r'url\((\.\./vendor/fontawesome/webfonts/[a-z0-9-]+)\.woff2\) format\("woff2"\),'
    r'url\([^)]*\.ttf\) format\("truetype"\)'
)


def lighten(pages: Path) -> str:
    """Shrinks a folder of built pages; returns both sizes in words.

    Raises: ValueError if the folder is still larger than allowed.
    """
    before = n_bytes_of(pages)
    for pattern in _UNUSED:
        for path in pages.glob(pattern):
            if path.is_file():
                path.unlink()
    only(pages / "_static" / "mathjax", _MATHJAX)
    icons(pages)
    for path in pages.glob("_images/*.png"):
        with_palette(path)
    for path in pages.glob("_images/*.svg"):
        text = _EMBEDDED.sub(lighter_picture, path.read_text(encoding="utf-8"))
        path.write_text(lighter_drawing(text), encoding="utf-8")
    for path in pages.rglob("*.html"):
        path.write_text(lighter_page(path.read_text(encoding="utf-8")), encoding="utf-8")
    for path in pages.glob("_sources/**/*.ipynb"):
        without_outputs(path)
    for folder in sorted(pages.rglob("*"), reverse=True):
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
    after, clicked = n_bytes_of(pages), sum(path.stat().st_size for path in by_click(pages))
    for n_bytes, most in ((after - clicked, SITE_MOST_BYTES), (after, WHOLE_MOST_BYTES)):
        if not n_bytes <= most:
            raise ValueError(f"the pages have {n_bytes} bytes, allowed: {most}")
    said = f"pages: {before / 1e6:.1f} MB, made {after / 1e6:.1f} MB"
    return f"{said}, of which {clicked / 1e6:.1f} MB are loaded by a click" if clicked else said


def by_click(pages: Path) -> list[Path]:
    """Returns the files that a page loads by a click: the compiler, Python, and what they need."""
    folder = pages / "_static" / "lab"
    return [path for path in folder.glob("*.js") if path.name.partition(".")[0] in _BY_CLICK]


def n_bytes_of(folder: Path) -> int:
    """Returns the bytes of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def only(folder: Path, patterns: tuple[str, ...]) -> None:
    """Removes all files of a folder except those of some patterns."""
    kept = {path for pattern in patterns for path in folder.glob(pattern)}
    for path in folder.rglob("*"):
        if path.is_file() and path not in kept:
            path.unlink()


def icons(pages: Path) -> None:
    """Reduces the icon fonts and their style to the icons that pages have."""
    sources = [*pages.rglob("*.html"), *pages.glob("_static/**/*.js")]
    texts = "".join(path.read_text(encoding="utf-8", errors="replace") for path in sources)
    used = set(re.findall(r"\bfa-[a-z0-9-]+", texts))

    def rule(found: re.Match) -> str:
        return found[0] if used & set(re.findall(r"fa-[a-z0-9-]+", found[1])) else ""

    glyphs: set[int] = set()
    for path in pages.glob("_static/**/*.css"):
        text = _FONT.sub(r'url(\1.woff) format("woff")', path.read_text(encoding="utf-8"))
        text = _ICON.sub(rule, text)
        path.write_text(text, encoding="utf-8")
        glyphs |= {int(code, 16) if code else ord(sign) for code, sign in _GLYPH.findall(text)}
    for path in pages.glob("_static/vendor/fontawesome/webfonts/*.ttf"):
        options = subset.Options(flavor="woff", notdef_outline=True, ignore_missing_unicodes=True)
        font = subset.load_font(str(path), options)
        subsetter = subset.Subsetter(options)
        subsetter.populate(unicodes=glyphs)
        subsetter.subset(font)
        subset.save_font(font, str(path.with_suffix(".woff")), options)
        path.unlink()


def with_palette(path: Path) -> None:
    """Writes an opaque picture with a palette, if that makes it smaller."""
    with Image.open(path) as picture:
        picture.load()
    see_through = picture.mode == "RGBA" and picture.getchannel("A").getextrema()[0] < _OPAQUE
    if picture.mode not in ("RGB", "RGBA") or see_through:
        return
    flat = picture.convert("RGB").quantize(_COLOURS, Image.Quantize.MEDIANCUT, dither=0)
    palette = flat.getpalette()
    for at in range(0, len(palette), 3):
        if min(palette[at : at + 3]) >= _NEARLY_WHITE:
            palette[at : at + 3] = [_OPAQUE] * 3
    flat.putpalette(palette)
    lighter = path.with_suffix(".lighter")
    flat.save(lighter, "PNG", optimize=True)
    if lighter.stat().st_size < path.stat().st_size:
        lighter.replace(path)
    else:
        lighter.unlink()


def lighter_picture(found: re.Match[str]) -> str:
    """Returns the data of a PNG that stands in an SVG, with a palette if that is smaller."""
    before = base64.b64decode(found[1])
    with Image.open(io.BytesIO(before)) as picture:
        flat = picture.convert("RGBA").quantize(
            _EMBEDDED_COLOURS, Image.Quantize.FASTOCTREE, dither=0
        )
    file = io.BytesIO()
    flat.save(file, "PNG", optimize=True)
    after = file.getvalue()
    if len(after) >= len(before):
        return found[0]
    return f"data:image/png;base64,{base64.b64encode(after).decode()}"


def lighter_drawing(svg: str) -> str:
    """Returns a drawing of matplotlib that says the same in fewer letters."""
    if _WORDS in svg:
        svg = svg.replace(_FONTS, "").replace(_WORDS, f"{_WORDS[:-1]};{_FONTS[:-2]}}}")
    svg = _POINTS.sub(lambda found: re.sub(r"\s*([A-Za-z])\s*", r"\1", found[0]).strip(), svg)
    svg = _STYLE.sub(lambda found: f' style="{re.sub("(?<=[:;]) ", "", found[1])}"', svg)
    ids = dict(zip(_ID.findall(svg), _short_names(), strict=False))
    svg = _NAMED.sub(lambda found: ids.get(found[0], found[0]), _NOTHING.sub("", svg))
    svg = svg.replace(" xlink:href", " href").replace(_XLINK, "")
    return _with_classes(_without_bare_groups(svg))


def _without_bare_groups(svg: str) -> str:
    """Returns a drawing without groups that say nothing of what they hold."""
    bare: list[bool] = []

    def tag(found: re.Match[str]) -> str:
        if found[0] != "</g>":
            bare.append(found[0] == "<g>")
            return "" if bare[-1] else found[0]
        return "" if bare.pop() else found[0]

    return _GROUP.sub(tag, svg)


def _with_classes(svg: str) -> str:
    """Returns a drawing whose style has each look that occurs twice or more."""
    end = "</style>"
    if end not in svg:
        return svg
    svg = _CLIPPED.sub(
        lambda found: f' style="clip-path:{found[1]}{";" * bool(found[2])}{found[2] or ""}"', svg
    )
    looks = [look for look, n in collections.Counter(_STYLE.findall(svg)).most_common() if n > 1]
    names = dict(zip(looks, _short_names(), strict=False))
    svg = _STYLE.sub(lambda m: f' class="{names[m[1]]}"' if m[1] in names else m[0], svg)
    return svg.replace(end, "".join(f".{names[look]}{{{look}}}" for look in looks) + end, 1)


def _short_names() -> Iterator[str]:
    """Yields a to z, aa to zz, and so on."""
    for length in itertools.count(1):
        yield from map("".join, itertools.product(string.ascii_lowercase, repeat=length))


def lighter_page(html: str) -> str:
    """Returns a page without comments, indentation and elements around a listing's spaces."""

    def kept(found: re.Match[str]) -> str:
        return found[1] or ("\n" if found[0].isspace() else "")

    return _SPACE.sub(r"\1", _KEPT_OR_NOT.sub(kept, html))


def without_outputs(path: Path) -> None:
    """Clears the outputs of a notebook that readers download, since the page shows them."""
    notebook = nbformat.read(path, 4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    text = json.dumps(notebook, ensure_ascii=False, separators=(",", ":"))
    path.write_text(text, encoding="utf-8")

"""In a browser, a chapter answers on its first screen, is short and light, and fits a phone."""

import re
from pathlib import Path

import pytest
import yaml

from labkernels.widgets import kernels, program
from tests.repo.files import ROOT
from tests.site.conftest import WIDTHS
from tests.site.test_layout import check_blocks
from tests.site.test_pages import CHAPTERS

pytestmark = pytest.mark.site
SCREEN = 900  # pixels
ANSWER_LINES_MAX, SCREENS_MAX = 5, 12
CHAPTER_MOST_BYTES = 2_500_000
LIGHT = {"batches", "bits", "budget", "tolerances"}  # data of widgets without WebAssembly
WITHOUT_FIGURES = {"notebooks/start_here.html"}
PARTS = yaml.safe_load((ROOT / "book/_toc.yml").read_text(encoding="utf-8"))["parts"]
PAGES = {
    part["caption"]: [f"{entry['file']}.html" for entry in part["chapters"]]
    for part in PARTS
    if part["caption"] in ("Primers", "Chapters")
}
WIDE = """[...document.querySelectorAll("div.math")].filter((box) => {
  const inside = box.getBoundingClientRect();
  return [...box.querySelectorAll("mjx-math")].some((math) => {
    const { left, right } = math.getBoundingClientRect();
    return left < inside.left - 1 || right > inside.right + 1;
  });
}).map((box) => box.id)"""


def check_equations(page):
    """Open everything that is folded, and assert that no equation is wider than its column."""
    page.wait_for_function("""[...document.querySelectorAll("div.math")].every(
        (box) => box.querySelector("mjx-math"))""")
    page.evaluate("document.querySelectorAll('details').forEach((each) => (each.open = true))")
    assert page.evaluate(WIDE) == []


@pytest.mark.parametrize("name", CHAPTERS)
def test_a_chapter_answers_on_its_first_screen_and_is_short_and_light(opened, name):
    """The WebAssembly that a chapter's widgets load is not counted."""
    page = opened(name)
    check_blocks(page)
    if name in PAGES["Chapters"]:
        words = page.locator(".lab-answer > p:not(.admonition-title)")
        lines = words.evaluate_all(
            "all => all.map((p) => p.clientHeight / parseFloat(getComputedStyle(p).lineHeight))"
        )
        assert lines
        assert sum(map(round, lines)) <= ANSWER_LINES_MAX
        picture = page.locator("article figure img").first.bounding_box()
        assert picture["y"] + picture["height"] <= SCREEN
    if name in PAGES["Primers"] + PAGES["Chapters"]:
        assert page.evaluate("document.body.scrollHeight") <= SCREENS_MAX * SCREEN
    page.evaluate("window.scrollTo(0, document.body.scrollHeight)")
    page.wait_for_load_state("networkidle")
    loaded = [Path(u.removeprefix("file://")) for u in page.loaded if u.startswith("file://")]
    names = {offer.name for offer in kernels.offers()} | (program.OTHERS.keys() - LIGHT)
    n_bytes = {path: path.stat().st_size for path in loaded if path.is_file()}
    counted = {path: n for path, n in n_bytes.items() if path.stem not in names}
    assert sum(counted.values()) <= CHAPTER_MOST_BYTES, sorted(counted.items(), key=lambda i: -i[1])
    check_equations(page)


@pytest.mark.parametrize("name", ["book/intro.html", *CHAPTERS])
def test_a_chapter_is_read_on_a_phone(opened, name):
    """Words of a figure have eleven pixels, and nothing is wider than the page."""
    page = opened(name, WIDTHS[1])
    check_blocks(page)
    check_equations(page)
    sources = page.evaluate("""[...document.querySelectorAll("article picture img")].map(
        (img) => [img.currentSrc || img.src, img.getBoundingClientRect().width])""")
    assert sources or name in WITHOUT_FIGURES
    for address, width in sources:
        svg = Path(address.removeprefix("file://")).read_text()
        points = float(re.search(r'viewBox="0 0 ([\d.]+)', svg)[1])
        looks = dict(re.findall(r"(?<=\.)([a-z]+)\{([^}]*)\}", svg))
        words = re.findall(r"<text.*?</text>", svg, re.DOTALL)
        assert words, address
        for word in words:  # within a formula, an index may be smaller than the letter before it
            looked = [word, *(looks[name] for name in re.findall(r' class="([a-z]+)"', word))]
            sizes = map(float, re.findall(r"font-size: ?([\d.]+)px", " ".join(looked)))
            assert max(sizes) * width / points >= 11, (address, word)
    assert not page.wrong
    assert page.evaluate("document.documentElement.scrollWidth") <= WIDTHS[1]

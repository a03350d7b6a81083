"""In a browser, a chapter answers on its first screen and is short, and its equations fit."""

import pytest
import yaml

from tests.repo.files import ROOT
from tests.site.test_pages import browser

__all__ = ["browser"]  # a fixture

pytestmark = pytest.mark.site
WIDTH, PHONE_WIDTH, SCREEN = 1300, 390, 900  # pixels
ANSWER_LINES_MAX, SCREENS_MAX = 5, 12
PARTS = yaml.safe_load((ROOT / "book/_toc.yml").read_text(encoding="utf-8"))["parts"]
PAGES = {
    part["caption"]: [entry["file"] for entry in part["chapters"]]
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


@pytest.fixture
def opened(browser):
    """Yield a function that opens a page whose equations are set."""
    pages = []

    def open_page(name, width):
        page = browser.new_page(viewport={"width": width, "height": SCREEN})
        pages.append(page)
        page.goto(f"{(ROOT / '_site' / name).as_uri()}.html", wait_until="networkidle")
        page.wait_for_function("""[...document.querySelectorAll("div.math")].every(
            (box) => box.querySelector("mjx-math"))""")
        return page

    yield open_page
    for page in pages:
        page.close()


@pytest.mark.parametrize("name", PAGES["Chapters"])
def test_the_answer_and_its_picture_stand_on_the_first_screen(opened, name):
    page = opened(name, WIDTH)
    words = page.locator(".lab-answer > p:not(.admonition-title)")
    lines = words.evaluate_all(
        "all => all.map((p) => p.clientHeight / parseFloat(getComputedStyle(p).lineHeight))"
    )
    assert lines
    assert sum(map(round, lines)) <= ANSWER_LINES_MAX
    picture = page.locator("article figure img").first.bounding_box()
    assert picture["y"] + picture["height"] <= SCREEN


@pytest.mark.parametrize("name", [*PAGES["Primers"], *PAGES["Chapters"]])
def test_a_chapter_is_at_most_twelve_screens_long(opened, name):
    assert opened(name, WIDTH).evaluate("document.body.scrollHeight") <= SCREENS_MAX * SCREEN


@pytest.mark.parametrize("width", [WIDTH, PHONE_WIDTH])
@pytest.mark.parametrize("name", [*PAGES["Primers"], *PAGES["Chapters"]])
def test_equations_are_no_wider_than_the_column(opened, name, width):
    page = opened(name, width)
    page.evaluate("document.querySelectorAll('details').forEach((each) => (each.open = true))")
    assert page.evaluate(WIDE) == []

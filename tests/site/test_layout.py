"""Pages fit a window and a phone: little is cut, no page is endless, and no script is needed."""

import http.server
import threading
from pathlib import Path

import page_tables
import pytest

from tests.site.conftest import SITE, WIDTHS
from tests.site.test_pages import check, playwright

pytestmark = pytest.mark.site
PAGES = ("api", "changelog", "notation", "coming_from", "assignments", "evidence")
MOST_PIXELS = 15_000
# Such a table scrolls by itself, and a shadow shows that it does.
MOST_TABLES_CUT = {1300: 1, 390: 3}
SEEN = """() => {
  const shown = (e) => e.checkVisibility({contentVisibilityAuto: true}),
    all = (of) => [...document.querySelectorAll(`.bd-article ${of}`)].filter(shown),
    is_cut = (e) => e.scrollWidth > e.clientWidth + 1,
    boxes = all("table").map((e) => e.closest(".pst-scrollable-table-container, .output")),
    rows = all(".lab-fold > table").map((e) => [...e.tBodies[0].rows].filter(shown).length);
  return {
    tables: boxes.filter((e) => e && is_cut(e)).length,
    code: all("pre").filter(is_cut).map((e) => e.textContent.slice(0, 60)),
    height: document.documentElement.scrollHeight,
    rows: rows,
    left: all(".lab-number").filter((e) => getComputedStyle(e).textAlign !== "right").length,
  };
}"""


def check_blocks(page):
    """Assert that blocks of an opened page fit, and that it has an end."""
    seen = page.evaluate(SEEN)
    assert not seen["code"]
    assert seen["height"] <= MOST_PIXELS
    assert max(seen["rows"], default=0) <= page_tables.MOST_ROWS
    assert seen["left"] == 0
    assert seen["tables"] <= MOST_TABLES_CUT[page.viewport_size["width"]]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", PAGES)
def test_blocks_fit_and_no_page_is_endless(opened, name, width):
    """Those of chapters are seen in test_shape.py."""
    check_blocks(opened(f"book/{name}.html", width))


@pytest.mark.parametrize(
    "name", ["book/notation.html", "notebooks/where_the_error_comes_from.html"]
)
def test_formulas_need_no_script(opened, name):
    page = opened(name, scripts=False)
    formulas = page.locator(".bd-article .math.notranslate")
    assert formulas.count() > 10
    assert formulas.filter(has=page.locator("mjx-container")).count() == formulas.count()
    assert formulas.filter(has=page.locator("math")).count() == formulas.count()
    assert not [url for url in page.loaded if "mathjax" in url]
    assert "\\(" not in page.locator(".bd-article").inner_text()


def test_a_long_table_opens_by_keyboard(opened):
    page = opened("notebooks/results.html")
    fold = page.locator(".lab-fold:has(> table)").first
    rows = fold.locator("tbody tr")
    assert rows.filter(visible=True).count() < rows.count()
    fold.locator("summary").press("Enter")
    playwright.expect(rows.filter(visible=True)).to_have_count(rows.count())


def test_an_address_opens_the_lid_around_what_it_names(opened):
    page = opened("book/api.html")
    page.goto(f"{page.url.partition('?')[0]}#labkernels.budget.occupancy")
    playwright.expect(page.locator("[id='labkernels.budget.occupancy']")).to_be_in_viewport()


def test_search_from_a_disk_shows_sentences_beside_the_magnifier(opened):
    page = opened("search.html?q=occupancy")
    results = page.locator("ul.search > li")
    page.get_by_text("Search finished").wait_for()
    playwright.expect(results.filter(has=page.locator(".context"))).to_have_count(results.count())
    found = " ".join(results.locator(".context").all_inner_texts())
    assert "A bar is the number of blocks on an SM" in found
    assert "Contents" not in found
    assert "Show code" not in found
    form = page.locator(".bd-search-container form")
    padding = "e => e.getBoundingClientRect().left + parseFloat(getComputedStyle(e).paddingLeft)"
    icon = form.locator("i, svg").first.bounding_box()
    assert form.locator("input").evaluate(padding) >= icon["x"] + icon["width"]
    assert not page.wrong


class Host(http.server.SimpleHTTPRequestHandler):
    """Serves the site in a folder of a host, and its 404.html for every other address."""

    def __init__(self, *args):
        super().__init__(*args, directory=SITE)

    def translate_path(self, path):
        """Return the file of an address below /labkernels/latest/."""
        return super().translate_path(path.removeprefix("/labkernels/latest"))

    def send_head(self):
        """Send a file of the site, or the page for addresses without one."""
        inside = self.path.startswith("/labkernels/latest/")
        if not (inside and Path(self.translate_path(self.path)).is_file()):
            self.path = "/404.html"
        return super().send_head()

    def log_message(self, *_):
        pass


@pytest.mark.parametrize("address", ["latest/no.html", "latest/a/b/c/no.html", "v9/book/no.html"])
def test_a_missing_page_leads_to_the_site(opened, address):
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Host) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        host = f"http://127.0.0.1:{server.server_port}/labkernels"
        page = opened(address, base=host)
        link = page.get_by_role("link", name="Glossary")
        playwright.expect(link).to_have_attribute("href", "/labkernels/latest/book/glossary.html")
        link.click()
        playwright.expect(page.locator("article h1")).to_contain_text("Glossary")
        server.shutdown()


@pytest.mark.parametrize(("width", "theme"), [(1300, "light"), (390, "dark")])
def test_the_page_for_missing_ones_opens_from_a_disk(opened, width, theme):
    page = opened("404.html", width, theme)
    check(page)
    page.get_by_label("Search").fill("occupancy")
    page.keyboard.press("Enter")
    page.get_by_text("Search finished").wait_for()
    page.go_back()
    page.get_by_role("link", name="API reference").click()
    playwright.expect(page.locator("article h1")).to_contain_text("API reference")
    assert not page.wrong

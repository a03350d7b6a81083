"""In a browser, axe-core finds nothing in built pages, nothing fails, and a page loads little."""

import re
from pathlib import Path

import lighten
import pytest

from labkernels.chapters import exercises
from labkernels.chapters.exercises.questions import questions
from tests.site.conftest import SITE, THEMES, WIDTHS

playwright = pytest.importorskip("playwright.sync_api")
axe = pytest.importorskip("axe_playwright_python.sync_playwright")

pytestmark = pytest.mark.site
PAGES = (
    "index.html",
    "search.html",
    "book/the_lab_in_your_browser.html",
    "book/edit_a_kernel.html",
    "book/assignments.html",
    "book/bibliography.html",
    "book/api.html",
    "notebooks/tensor_cores_on_and_off.html",
)
CHAPTER = "notebooks/tensor_cores_on_and_off.html"
SOURCES = (Path(__file__).parents[2] / "notebooks").glob("[!_]*.py")
CHAPTERS = sorted(f"notebooks/{path.stem}.html" for path in SOURCES)
# With "preload", axe-core would request style sheets, which a page from a disk may not do.
AXE_OPTIONS = {"preload": False, "resultTypes": ["violations"]}


def check(page, within=None):
    """Assert that browser and axe-core find nothing wrong, and nothing is wider than the page.

    within: a selector of the part that axe-core looks at, where the rest is as the page was opened.
    """
    # The theme gives code that is wider than its box a tab stop, 0.3 s after its last change.
    is_set = "x => x.scrollWidth <= x.clientWidth || x.tabIndex === 0"
    page.wait_for_function(f"[...document.querySelectorAll('pre')].every({is_set})")
    found = axe.Axe().run(page, context=within, options=AXE_OPTIONS)
    wrong = [(v["id"], v["nodes"][0]["html"]) for v in found.response["violations"]]
    assert not wrong
    assert not page.wrong
    assert page.evaluate("document.documentElement.scrollWidth") <= page.viewport_size["width"]


@pytest.mark.parametrize(("width", "theme"), list(zip(WIDTHS, THEMES, strict=True)))
@pytest.mark.parametrize("name", PAGES)
def test_page_is_accessible_and_silent(opened, name, width, theme):
    check(opened(name, width, theme))


@pytest.mark.parametrize("name", ["search.html", "notebooks/fragments_and_rounding.html"])
def test_focus_is_seen_wherever_the_tab_key_leads(opened, name):
    page = opened(name)
    page.keyboard.press("Tab")
    stops, hidden = 0, set()
    while page.evaluate("document.activeElement !== document.body"):
        stops += 1
        if page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "none":
            hidden.add(page.evaluate("document.activeElement.outerHTML.slice(0, 120)"))
        page.keyboard.press("Tab")
    assert stops > 20
    assert not hidden


@pytest.mark.parametrize("width", WIDTHS)
def test_stepper_goes_forward_and_back_by_keyboard(opened, width):
    page = opened("book/the_lab_in_your_browser.html", width)
    stepper = page.locator("[data-lab-widget=step_kernel]")
    stepper.get_by_role("button", name="Record a run").click()
    said = stepper.locator(".lab-sides .lab-status")
    said.get_by_text("Stop 1 of 42, the block").wait_for()
    stepper.get_by_role("slider").press("ArrowRight")
    said.get_by_text("Stop 2 of 42, warp 3").wait_for()
    stepper.get_by_role("button", name="Forward").press("ArrowLeft")
    said.get_by_text("Stop 1 of 42").wait_for()
    stepper.get_by_role("button", name="Forward").click()
    stepper.get_by_label("Stop at").select_option("words")
    while stepper.locator(".lab-fragments").count() == 0:
        stepper.get_by_role("button", name="Forward").click()
    check(page, within="[data-lab-widget=step_kernel]")


def press_until(page, key, name):
    """Press a key until the focus is on an element whose label or text is this one."""
    focused = "e => e.labels?.[0]?.textContent ?? e.textContent"
    for _ in range(200):
        page.keyboard.press(key)
        element = page.evaluate_handle("document.activeElement")
        if element.evaluate(focused) == name:
            return
    raise AssertionError(f"{key} never leads to {name!r}")


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("served", [False, True], ids=["from a disk", "served"])
def test_a_first_question_is_answered_wrong_and_then_right_by_keyboard(
    opened, strict_site, served, width
):
    page = opened("book/intro.html", width, base=strict_site if served else "")
    said = page.locator("[data-lab-widget=question] [aria-live]")
    press_until(page, "Tab", "Your answer")
    page.keyboard.type("16")
    page.keyboard.press("Enter")
    wrong = exercises.check("first-stride", 16)
    playwright.expect(said.first.locator("p")).to_have_text(["Not yet.", *wrong.lines])
    press_until(page, "Tab", "Hint")
    page.keyboard.press("Enter")
    playwright.expect(said.last).to_have_text(questions()["first-stride"].hint)
    page.keyboard.press("Control+A")  # the last hint leaves the focus in the field
    page.keyboard.type("8")
    page.keyboard.press("Enter")
    playwright.expect(said.first).to_have_text("Right.")
    check(page, within="[data-lab-widget=question]")
    page.reload()
    playwright.expect(said.first).to_have_text("Right.")
    page.goto(page.url.replace("intro", "assignments"))
    page.get_by_text("You have answered 1 of ").wait_for()
    press_until(page, "Shift+Tab", "Forget my answers")
    page.keyboard.press("Enter")
    page.get_by_text("You have answered 0 of ").wait_for()
    assert not page.wrong


def test_table_of_a_chapter_is_ordered_by_its_reader(opened):
    page = opened("notebooks/results.html")
    table = page.locator("#T_summary")
    column = table.locator("thead th").all_text_contents().index("targets") + 1
    table.get_by_role("button", name="targets").press("Enter")
    cells = table.locator(f"tbody td:nth-child({column})").all_text_contents()
    numbers = [float(text) for text in cells if text != "–"]
    assert numbers == sorted(numbers)
    assert len(numbers) > 1
    check(page, within="#T_summary")


@pytest.mark.parametrize(("width", "theme"), list(zip(WIDTHS, THEMES, strict=True)))
def test_tolerance_lets_bugs_through_or_refuses_the_right_kernel(opened, width, theme):
    page = opened("book/the_lab_in_your_browser.html", width, theme)
    explorer = page.locator("[data-lab-widget=tolerance]")
    explorer.get_by_role("button", name="Run the bugs").press("Enter")
    explorer.get_by_text("lets 1 of 5 bugs through and passes the right kernel").wait_for()
    for name in ("atol", "rtol"):
        explorer.get_by_role("slider", name=name).press("Home")
    explorer.get_by_text("lets 0 of 5 bugs through and refuses the right kernel").wait_for()
    check(page, within="[data-lab-widget=tolerance]")


@pytest.mark.parametrize(("width", "theme"), list(zip(WIDTHS, THEMES, strict=True)))
def test_figure_says_its_values_by_keyboard_and_grows(opened, width, theme):
    page = opened(CHAPTER, width, theme)
    button = page.get_by_role("button", name="Explore Figure").first
    button.press("Enter")
    view = page.get_by_role("dialog").get_by_role("application")
    view.press("ArrowRight")
    said = page.get_by_role("dialog").get_by_role("status")
    playwright.expect(said).to_have_text(re.compile(r"\d"))
    before = view.locator("img").bounding_box()["width"]
    view.press("+")
    assert view.locator("img").bounding_box()["width"] > 1.4 * before
    check(page, within="dialog")
    page.get_by_role("button", name="Close").press("Enter")
    playwright.expect(button).to_be_focused()


@pytest.mark.parametrize("name", ["book/intro.html", *PAGES[1:]])  # the index leads there
def test_a_strict_policy_refuses_nothing(opened, strict_site, name):
    page = opened(name, base=strict_site)
    page.evaluate("document.querySelectorAll('details').forEach((each) => (each.open = true))")
    for widget, press, said in (
        ("run_kernel", "Run", "Equal in every bit to the H200."),
        ("step_kernel", "Record a run", "words in which threads met"),
        ("break_kernel", "Run with checks", "which no thread wrote"),
    ):
        form = page.locator(f"[data-lab-widget={widget}]")
        if form.count():
            form.get_by_role("button", name=press, exact=True).click()
            form.get_by_text(said).first.wait_for()
    page.locator("[data-press=toggleFullScreen]").click()
    page.wait_for_function("document.fullscreenElement !== null")
    assert not page.wrong  # the console would have each refusal


def test_search_offers_the_nearest_word(opened):
    page = opened("search.html?q=ocupancy")
    page.get_by_role("link", name="occupancy", exact=True).first.click()
    page.wait_for_url("**q=occupancy")
    page.locator("#search-results li").first.wait_for()


def test_a_figure_or_words_stand_where_no_script_runs(browser):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{SITE.as_uri()}/book/the_lab_in_your_browser.html")
    images = page.locator(".lab-widget img").all()
    audit = page.locator('[data-lab-widget="audit"]')  # which has nothing to draw
    assert "labkernels audit" in audit.inner_text()
    assert len(images) == page.locator(".lab-widget").count() - audit.count() > 5
    assert all(image.bounding_box()["width"] > 300 for image in images)
    context.close()


def test_site_is_light():
    files = {path: path.stat().st_size for path in SITE.rglob("*") if path.is_file()}
    assert {SITE / name for name in (*PAGES, *CHAPTERS)} <= files.keys()
    clicked = sum(files[path] for path in lighten.by_click(SITE))
    assert sum(files.values()) - clicked <= lighten.SITE_MOST_BYTES
    assert sum(files.values()) <= lighten.WHOLE_MOST_BYTES

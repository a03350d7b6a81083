"""In a browser, a reader edits a kernel: an error, its mend, what the checks find, the bits."""

import pytest
from page_assignments import names
from solutions import solution

from labkernels.chapters import exercises
from labkernels.chapters.primers import machine
from labkernels.widgets import editing, small
from labkernels.widgets.steps.broken import PARTS
from tests.site.conftest import WIDTHS
from tests.site.test_pages import check, playwright, press_until
from tests.widgets.test_broken import SAID

pytestmark = pytest.mark.site
PAGE = "book/edit_a_kernel.html"
SOURCE = "decode/mma/kernel.cuh"
TYPO = "sync_blok();"
SLOW_MS = 180_000  # a first compile where other tests use the cores
# An address in a page has 32 bits, and other tensors lie next to a stray one: other words name it.
STRAY = [m.says for m in exercises.get("page_lookup").mistakes if m.fault == "bounds"]
SHORT = "two_stages"  # whose kernel is the smallest
ASSIGNMENTS = [SHORT]
ASSIGNMENTS += [pytest.param(name, marks=pytest.mark.long) for name in names() if name != SHORT]
CHECKED = [
    name if name == "decode_fma" else pytest.param(name, marks=pytest.mark.long)
    for name in editing.EDITED
]
MISTAKES = [1, *(pytest.param(n, marks=pytest.mark.long) for n in range(2, len(PARTS) + 1))]


@pytest.fixture
def widget(opened):
    page = opened(PAGE)
    found = page.locator("[data-lab-widget=edit_kernel]")
    found.get_by_role("textbox", name=f"The text of {SOURCE}").wait_for()
    return found


def says(widget, text):
    playwright.expect(widget.get_by_role("status").first).to_contain_text(text, timeout=SLOW_MS)


def press(widget, name):
    widget.get_by_role("button", name=name, exact=True).press("Enter")


def test_keyboard_enters_and_leaves_the_editor(widget):
    page = widget.page
    press_until(page, "Tab", "Plant a mistake")
    page.keyboard.press("Tab")
    focused = "document.activeElement.closest('.cm-content') !== null"
    assert page.evaluate(focused)
    page.keyboard.press("Tab")  # indents
    assert page.evaluate(focused)
    widget.get_by_text("1 line changed").wait_for()
    page.keyboard.press("Escape")
    page.keyboard.press("Tab")
    assert not page.evaluate(focused)
    press(widget, "Reset")
    widget.get_by_text("Diff against the original: unchanged").wait_for()
    check(page, within="[data-lab-widget=edit_kernel]")


def test_link_brings_the_edit_back(widget):
    page = widget.page
    widget.get_by_label("Plant a mistake").select_option("8")
    page.wait_for_url("**#edit=*")
    page.reload()
    says(widget, "The link's edit is in the editor")
    widget.get_by_text("Diff against the original: 1 line changed").wait_for()
    assert not page.wrong


@pytest.mark.parametrize("width", WIDTHS[1:])
def test_unchanged_kernel_runs_without_a_compiler(opened, width):
    page = opened(PAGE, width)
    page.get_by_role("button", name="Run", exact=True).click()
    page.get_by_text("Equal in every bit to the H200.").wait_for(timeout=SLOW_MS)
    check(page, within="[data-lab-widget=edit_kernel]")


def test_reader_is_told_of_an_error_and_of_a_race_and_sees_the_bits(widget):
    page = widget.page
    plant = editing.data()["kernels"][0]["plants"][0]
    widget.get_by_label("Plant a mistake").select_option("1")
    page.keyboard.type(TYPO)
    press(widget, "Compile")
    says(widget, "The compiler found 1 error.")
    widget.get_by_role("button", name="did you mean 'sync_block'").wait_for()
    line = editing.original(SOURCE).split(plant["old"])[0].count("\n") + 1
    error = widget.get_by_role("alert").get_by_role("button").first
    playwright.expect(error).to_contain_text(f"{SOURCE}:{line}: error: use of undeclared")
    error.press("Enter")  # leads to the line
    for _ in TYPO:
        page.keyboard.press("Delete")
    press(widget, "Check")
    says(widget, "The checks stop the kernel.")
    widget.get_by_text("which no thread wrote").first.wait_for()
    widget.get_by_text(f"You changed {SOURCE}:{line}.").wait_for()
    press(widget, "Step")
    widget.get_by_text("the checks have stopped the kernel").wait_for()
    press(widget, "Run")
    widget.get_by_text("Now: 1 line changed").wait_for(timeout=SLOW_MS)
    assert widget.get_by_text("Equal in every bit to the H200.").count() == 2
    check(page, within="[data-lab-widget=edit_kernel]")


def write_over(widget, file, line, text):
    """Type a text in the place of a line."""
    keyboard = widget.page.keyboard
    widget.get_by_label("File", exact=True).select_option(file)
    widget.get_by_role("textbox", name=f"The text of {file}").click()
    keyboard.press("Control+Home")
    for _ in range(line - 1):
        keyboard.press("ArrowDown")
    for key in ("Home", "Shift+End", "Delete"):
        keyboard.press(key)
    keyboard.type(text)


@pytest.mark.parametrize("number", MISTAKES)
def test_mistake_that_is_typed_is_caught_and_its_line_is_named(widget, number):
    plant = editing.data()["kernels"][0]["plants"][number - 1]
    file, old = plant["file"], plant["old"]
    line = editing.original(file).split(old)[0].count("\n") + 1
    write_over(widget, file, line, plant["new"].strip())
    press(widget, "Check")
    says(widget, "The checks")
    widget.get_by_text(f"You changed {file}:{line}.").wait_for()
    caught = SAID[number - 1] if number <= len(SAID) else "a bug"
    widget.get_by_text(caught).first.wait_for()
    assert not widget.page.wrong


def test_small_kernel_runs_and_an_index_beyond_its_dimension_is_found(widget):
    kernel, file = small.OFFERED[0].kernel.instance, small.OFFERED[0].kernel.header
    widget.get_by_label("Kernel", exact=True).select_option(kernel)
    press(widget, "Run")
    says(widget, "The run is done.")
    widget.get_by_text("Every error is inside its bound").first.wait_for()
    text = (machine.FOLDER / file).read_text()
    line = text.split("smem.q[warp][d]")[0].count("\n") + 1
    old = text.splitlines()[line - 1].strip()
    write_over(widget, file, line, old.replace("smem.q[warp][d]", "smem.q[0][32 * warp + d]"))
    press(widget, "Step")
    found = widget.get_by_text("is out of bounds of its dimension, 'const float[32]'").first
    playwright.expect(found).to_contain_text(f"{file}:{line}", timeout=SLOW_MS)
    widget.get_by_text("the checks have stopped the kernel").wait_for()
    assert not widget.page.wrong


@pytest.mark.parametrize("kernel", CHECKED)
def test_checks_find_nothing_in_a_kernel_of_the_lab(widget, kernel):
    widget.get_by_label("Kernel", exact=True).select_option(kernel)
    press(widget, "Check")
    says(widget, "The checks find nothing wrong")
    assert not widget.page.wrong


@pytest.mark.parametrize("name", ASSIGNMENTS)
def test_page_compiles_three_wrong_answers_and_a_right_one(opened, name):
    page, mistakes = opened("book/assignments.html"), exercises.get(name).mistakes[:3]
    form = page.locator(f"form[aria-label='answer to {name}']")
    page.locator(".dropdown", has=form).get_by_role("button").first.click()
    box = page.locator(".lab-widget", has=form)
    for answer, says in (*((each.source, each.says) for each in mistakes), (solution(name), "")):
        form.get_by_label("Your lines").fill(f"{answer}\n// unlike the answers that the page knows")
        form.get_by_role("button", name="Check").click()
        head = "Not yet." if says else "Right."
        first = box.locator(".lab-said p").first
        playwright.expect(first).to_have_text(head, timeout=SLOW_MS)
        if says in STRAY:
            continue
        assert says in " ".join(box.locator(".lab-said").inner_text().split())
    assert any(url.endswith("compiler.js") for url in page.loaded)
    assert not page.wrong


@pytest.mark.long
def test_second_visit_downloads_no_compiler(opened, strict_site):
    page = opened(PAGE, base=strict_site)
    for is_first in (True, False):
        page.loaded.clear()
        page.locator(".cm-content").press("x")
        page.get_by_role("button", name="Compile", exact=True).press("Enter")
        page.get_by_text("The compiler found").first.wait_for(timeout=SLOW_MS)
        assert any(url.endswith("compiler.0.js") for url in page.loaded) == is_first
        page.reload()
    assert not page.wrong


def test_reader_steps_through_an_answer_in_the_primer(opened):
    page = opened("notebooks/attention_block_by_block.html")
    form = page.get_by_role("form", name="answer to rescale", exact=True)
    offer = page.locator("details.lab-offer:has([data-assignment*=rescale])")  # closed: no role
    offer.locator("summary").first.click()
    form.get_by_role("button", name="Step", exact=True).click()
    page.get_by_text("Stop 1 of 18, the block").wait_for(timeout=SLOW_MS)
    page.get_by_label("attention.cuh, around line").get_by_text("sync_block").first.wait_for()

"""In a browser, widgets refuse what cannot be, keep runs side by side, and are shared by a link."""

import re
from urllib.parse import unquote

import pytest

from tests.site.conftest import WIDTHS
from tests.site.test_pages import check, playwright, press_until

pytestmark = pytest.mark.site
LAB, HOME = "book/the_lab_in_your_browser.html", "book/intro.html"
HIGHEST_MAP = 120  # pixels between the controls and the picture on a phone
WRONG = {  # field of the calculator: texts, and what is said
    "W: warps of a block": {
        "0": '"0" is given',
        "": "Nothing is given",
        "64": "64 warps are 2,048",
    },
    "T: keys of a step": {"7": "is not a multiple of", "-1": '"-1" is given'},
    "Requests": {"2.5": '"2.5" is given', "0": "from 1 to 65,536", "-4": '"-4" is given'},
    "Query heads": {"33": "33 query heads are no multiple of the 8 KV heads."},
}
OF_A_SHAPE = {"Requests", "Query heads"}


def widget(page, name):
    found = page.locator(f"[data-lab-widget={name}]")
    found.scroll_into_view_if_needed()
    return found


def check_at_top(page, name):
    page.evaluate("scrollTo({top: 0, behavior: 'instant'})")  # there the theme shows no button
    check(page, within=f"[data-lab-widget={name}]")


def run(form, name="Run"):
    form.get_by_role("button", name=name, exact=True).press("Enter")


@pytest.mark.parametrize("width", WIDTHS)
def test_calculator_says_at_the_field_what_is_wrong_and_shows_no_number(opened, width):
    page = opened(LAB, width)
    form = widget(page, "budget")
    block, shape = (form.get_by_text(text) for text in ("An SM of the", "needs at least"))
    for label, texts in WRONG.items():
        field = form.get_by_label(label)
        before = field.input_value()
        for text, said in texts.items():
            field.fill(text)
            playwright.expect(field).to_have_attribute("aria-invalid", "true")
            message = form.locator(f"#{field.get_attribute('aria-describedby')}")
            playwright.expect(message).to_contain_text(said)
            playwright.expect(shape if label in OF_A_SHAPE else block).to_have_count(0)
        field.fill(before)
        playwright.expect(field).to_have_attribute("aria-invalid", "false")
        playwright.expect(block.or_(shape)).to_have_count(2)
    form.get_by_label("Requests").fill("2.5")
    check_at_top(page, "budget")


def test_a_kernel_that_a_gpu_cannot_run_is_refused_with_the_reason(opened):
    page = opened(LAB)
    form = widget(page, "budget")
    form.get_by_label("Kernel", exact=True).select_option("prefill_wgmma")
    gpu = form.get_by_label("GPU", exact=True)
    a100 = next(text for text in gpu.locator("option").all_text_contents() if "A100" in text)
    gpu.select_option(label=a100)
    form.get_by_text("prefill_wgmma needs sm_90a; the NVIDIA A100").wait_for()
    assert form.locator("table").count() == 0
    gpu.select_option(
        label=next(t for t in gpu.locator("option").all_text_contents() if "H200" in t)
    )
    form.get_by_text("An SM of the NVIDIA H200").wait_for()
    assert not page.wrong


def test_a_window_and_sinks_change_what_a_call_takes(opened):
    page = opened(LAB)
    form = widget(page, "budget")
    before = form.get_by_label("Keys before a token that it sees")
    playwright.expect(before).to_be_hidden()
    form.get_by_label("head_dim").select_option("64")
    form.get_by_label("Query heads").fill("64")
    form.get_by_label("Window", exact=True).select_option(label="some keys before a token")
    form.get_by_label("Sinks").select_option(label="one of each query head")
    before.fill("-1")
    playwright.expect(before).to_have_attribute("aria-invalid", "true")
    assert form.get_by_role("table", name="What the variant changes").count() == 0
    before.fill("127")
    table = form.get_by_role("table", name="What the variant changes")
    steps = table.get_by_role("row", name="steps of 16 keys")
    playwright.expect(steps).to_contain_text("262,144")
    playwright.expect(steps).to_contain_text("4,096")
    check_at_top(page, "budget")
    form.get_by_label("Kernel", exact=True).select_option("prefill_wgmma_basic")
    playwright.expect(form.get_by_label("Window", exact=True)).to_be_hidden()
    assert not page.wrong


def test_a_bit_is_turned_over_by_mouse_and_by_keyboard(opened):
    page = opened(LAB, WIDTHS[1])
    form = widget(page, "bits")
    number = form.get_by_label("A number")
    number.fill("1")
    form.get_by_role("button", name="bit 9, fraction").click()
    playwright.expect(number).to_have_value("1.5")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Space")  # bit 10, the last of the exponent
    playwright.expect(number).to_have_value("0.75")
    playwright.expect(form.get_by_role("button", name="bit 10, exponent")).to_be_focused()
    check_at_top(page, "bits")


@pytest.mark.parametrize("width", WIDTHS)
def test_two_runs_stand_side_by_side_and_the_focus_stays(opened, width):
    page = opened(LAB, width)
    form = widget(page, "run_kernel")
    for kernel in ("decode_mma", "decode_fma"):
        form.get_by_label("Kernel", exact=True).select_option(kernel)
        run(form)
        form.locator(".lab-run").first.get_by_text(f"{kernel}: head_dim").wait_for()
        playwright.expect(form.get_by_role("button", name="Run")).to_be_focused()
    boxes = [box.bounding_box() for box in form.locator(".lab-run").all()]
    beside = boxes[0]["y"] == boxes[1]["y"] and boxes[0]["x"] < boxes[1]["x"]
    assert beside == (width == WIDTHS[0])
    form.get_by_text("the largest error of a head is smaller in decode_fma").wait_for()
    check_at_top(page, "run_kernel")


def test_a_run_is_stopped_and_can_begin_again(opened):
    page = opened(LAB)
    form = widget(page, "run_kernel")
    form.get_by_label("Kernel", exact=True).select_option("prefill_wgmma")  # the longest
    run(form)
    run(form, "Stop")
    form.get_by_text("The run was stopped.").wait_for()
    playwright.expect(form.get_by_role("button", name="Run")).to_be_focused()
    assert form.locator(".lab-run").count() == 0
    form.get_by_label("Kernel", exact=True).select_option("decode_mma")
    run(form)
    form.get_by_text("Equal in every bit to the H200.", exact=True).wait_for()
    assert not page.wrong


@pytest.mark.parametrize("width", WIDTHS)
def test_controls_of_the_stepper_stay_beside_the_picture_and_play(opened, width):
    page = opened(LAB, width)
    stepper = widget(page, "step_kernel")
    stepper.get_by_text("Stop 1 of 42, the block").wait_for()
    bar, picture = stepper.locator(".lab-stepper"), stepper.locator(".lab-map")
    below = picture.bounding_box()["y"] - sum(bar.bounding_box()[k] for k in ("y", "height"))
    assert 0 <= below < HIGHEST_MAP
    picture.evaluate("map => map.scrollIntoView({block: 'end'})")
    playwright.expect(bar.get_by_role("button", name="Forward")).to_be_in_viewport(ratio=1)
    bar.get_by_role("button", name="Play").press("Enter")
    stepper.get_by_text("Stop 3 of 42").wait_for()
    bar.get_by_role("button", name="Pause").press("Enter")
    stopped = bar.locator(".lab-brief").text_content()
    page.wait_for_timeout(1000)
    assert bar.locator(".lab-brief").text_content() == stopped
    check_at_top(page, "step_kernel")


def test_a_link_shows_what_its_sender_chose(opened):
    page = opened(LAB)
    widget(page, "budget").get_by_label("W: warps of a block").fill("8")
    widget(page, "bits").get_by_label("A number").fill("3 x")
    form = widget(page, "run_kernel")
    form.get_by_label("Kernel", exact=True).select_option("decode_fma")
    form.get_by_label("head_dim").select_option("128")
    address = page.url
    assert "run_kernel.kernel=decode_fma" in unquote(address)
    other = page.context.new_page()
    other.goto(address)
    playwright.expect(widget(other, "run_kernel").get_by_label("Kernel", exact=True)).to_have_value(
        "decode_fma"
    )
    playwright.expect(widget(other, "run_kernel").get_by_label("head_dim")).to_have_value("128")
    widget(other, "budget").get_by_text("of 256 threads").wait_for()
    widget(other, "bits").get_by_text('"x" is given as number 2').wait_for()


def test_a_link_leads_to_a_stop_of_the_stepper(opened):
    page = opened(LAB)
    stepper = widget(page, "step_kernel")
    stepper.get_by_text("Stop 1 of 42").wait_for()
    stepper.get_by_label("What is broken", exact=True).select_option("4")
    stepper.get_by_role("button", name="Record a run").press("Enter")
    stepper.get_by_text("The checks have stopped the kernel").first.wait_for()
    stepper.get_by_role("button", name="Back").press("Enter")
    said = stepper.locator(".lab-sides .lab-status").text_content()
    other = page.context.new_page()
    other.goto(page.url)
    playwright.expect(widget(other, "step_kernel").locator(".lab-sides .lab-status")).to_have_text(
        said
    )


def test_a_form_can_be_skipped(opened):
    page = opened(LAB)
    for _ in range(200):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.className") == "lab-skip":
            break
    assert page.evaluate("document.activeElement.getBoundingClientRect().width") > 100
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('[data-lab-widget]') === null")


@pytest.mark.parametrize("width", WIDTHS)
def test_home_runs_a_kernel_and_breaks_it(opened, width):
    page = opened(HOME, width)
    press_until(page, "Tab", "Run a kernel")
    live = page.locator("[data-lab-widget=first_run]")
    assert live.bounding_box()["y"] < page.viewport_size["height"] / 2
    page.keyboard.press("Enter")
    live.get_by_text("Equal to the H200 in every bit.").wait_for()
    assert live.locator(".lab-blocks .lab-done").count() == 64
    press_until(page, "Tab", "Now break it")
    page.keyboard.press("Enter")
    live.get_by_text(
        re.compile(r"thread \d+: reads shared byte \d+ at .*, which no thread wrote")
    ).wait_for()
    check_at_top(page, "first_run")


@pytest.mark.parametrize("width", WIDTHS)
def test_a_model_writes_with_tensor_cores_on_and_off(opened, width):
    page = opened("notebooks/does_it_matter.html", width)
    form = widget(page, "write")
    run(form, "Write")
    form.get_by_text("219 bytes are written. The texts part at byte 29").wait_for()
    assert form.locator("pre mark").all_text_contents() == ["k", "l"]  # without motion, at the end
    playwright.expect(form.get_by_role("button", name="Write")).to_be_focused()
    check_at_top(page, "write")
    form.get_by_label("Prompt").fill("")
    run(form, "Write")
    form.get_by_text("0 bytes are given; a prompt has 1 to 128.").wait_for()

"""Python in a page, opened from a disk, says what the package says: of answers and of files."""

import json
import re

import numpy as np
import page_assignments
import page_python
import page_widgets
import pytest

from labkernels.audit.dumps import audit
from labkernels.chapters import exercises
from labkernels.chapters.exercises.overlay import region
from labkernels.widgets import kernels

playwright = pytest.importorskip("playwright.sync_api")

pytestmark = pytest.mark.site
WAIT_MS = 240_000
# A stray address is told from the tensor that happens to lie next to it.
STRAY = re.compile(r"byte -?\d+ of \w+, which has \d+ bytes")
NOT_IN_A_PAGE = ("Ledger of ", "Bank conflicts")
REFUSES = """(globalThis.lab_assets ??= {}).edit = { Compiler: { load: async () => ({
  compile: async () => { throw Object.assign(new Error("no"), { diagnostics: [{ line: 2, column: 3,
    path: "your_answer.cuh", severity: "error", message: "use of x" }] }); } }) } };"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("pages")
    (path / "lab.js").write_text(page_widgets.bundle(kernels.offers()))
    page_python.write(path)
    page_assignments.write(path)
    (path / "edit.js").write_text(REFUSES)
    boxes = [*map(page_assignments.box, page_assignments.names()), page_assignments.AUDIT_BOX]
    inside = "".join("\n".join(box.splitlines()[1:-1]) for box in boxes)
    html = f'<!doctype html><meta charset="utf-8"><body>{inside}<script src="lab.js"></script>'
    (path / "index.html").write_text(html)
    return path


@pytest.fixture(scope="module")
def page(folder, browser):
    opened = browser.new_page()
    opened.set_default_timeout(WAIT_MS)
    opened.goto((folder / "index.html").as_uri())
    return opened


def said(page, name, answer):
    """Return the paragraphs that a page shows to an answer, once it has judged."""
    form = page.get_by_role("form", name=f"answer to {name}", exact=True)
    box = page.locator(".lab-widget", has=form)
    box.get_by_label("Your lines").fill(answer)
    button = box.get_by_role("button", name="Check")
    button.click()
    playwright.expect(button).to_be_enabled(timeout=WAIT_MS)
    assert box.get_by_role("status").inner_text() == ""
    return [STRAY.sub("somewhere", line) for line in box.locator(".lab-said p").all_inner_texts()]


def in_a_page(report):
    lines = [STRAY.sub("somewhere", " ".join(line.split())) for line in report.lines]
    return ["Right." if report.passed else "Not yet.", *lines]


def common(lines):
    return [line for line in lines if not line.startswith(NOT_IN_A_PAGE)]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", page_assignments.names())
def test_a_page_says_of_known_answers_what_the_check_says(page, name):
    exercise = exercises.get(name)
    wrong = [exercise.starter, *(m.source for m in exercise.mistakes if not m.fault)]
    for answer in wrong:
        assert said(page, name, answer) == in_a_page(exercises.check(name, answer))
    if not exercise.adapter:  # else the kernel's own lines are no answer
        own = region(*exercise.place)
        found, right = said(page, name, own), in_a_page(exercises.check(name, own))
        assert common(found) == common(right)


def test_a_right_answer_has_all_lines_but_those_of_a_gpu_and_of_banks(page):
    found = said(page, "swizzle", region(*exercises.get("swizzle").place))
    assert found[0] == "Not yet."  # the chapter's own layout is not asked for
    found = said(page, "maximum", region(*exercises.get("maximum").place))
    assert found[0] == "Right."
    assert found[-1] == "Bank conflicts: JupyterLab counts them; this page does not."
    assert "NVRTC does not run in a page" in found[-2]


def test_an_error_of_the_compiler_names_the_line(page):
    found = said(page, "maximum", "x")
    assert found == ["Not yet.", "Line 2, column 3: use of x"]
    page.get_by_role("button", name="Go to line 2").click()


def test_lines_are_kept_until_they_are_reset(page):
    form = page.get_by_role("form", name="answer to rescale")
    form.get_by_label("Your lines").fill("mine")
    page.reload()
    assert form.get_by_label("Your lines").input_value() == "mine"
    form.get_by_role("button", name="Reset").click()
    assert form.get_by_label("Your lines").input_value() == exercises.get("rescale").starter


def save(path, arrays):
    """Write an .npz, or a .safetensors: a header of JSON, with its length before it, and bytes."""
    if path.suffix == ".npz":
        np.savez(path, **arrays)
        return
    header, end = {}, 0
    for name, value in arrays.items():
        offsets = [end, end := end + value.nbytes]
        header[name] = {"dtype": "F16", "shape": value.shape, "data_offsets": offsets}
    text = json.dumps(header).encode()
    content = (value.tobytes() for value in arrays.values())
    path.write_bytes(b"".join((len(text).to_bytes(8, "little"), text, *content)))


@pytest.mark.parametrize("suffix", ["npz", "safetensors"])
def test_a_file_gets_the_verdict_of_the_command_line(page, tmp_path, suffix):
    draw = np.random.default_rng(5)
    shapes = {"q": (2, 4, 64), "k": (2, 2, 80, 64), "v": (2, 2, 80, 64)}
    given = {name: draw.standard_normal(s).astype(np.float16) for name, s in shapes.items()}
    q, k, v = (given[name].astype(np.float64) for name in "qkv")
    scores = np.einsum("bgrd,bgkd->bgrk", q.reshape(2, 2, 2, 64), k) / 8
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    out = np.einsum("bgrk,bgkd->bgrd", weights, v).reshape(2, 4, 64)
    for name, factor in (("right", 1.0), ("wrong", 1.05)):
        out[1, 3] *= factor
        path = tmp_path / f"{name}.{suffix}"
        save(path, {**given, "out": out.astype(np.float16)})
        found = audit(path)
        page.get_by_label("A file, .npz").set_input_files(path)
        page.get_by_role("button", name="Audit").click()
        told = page.locator("[data-lab-widget=audit] [role=status]")
        playwright.expect(told).to_have_text(f"{path.name}: {found.answer}", timeout=WAIT_MS)
        shown = page.locator("[data-lab-widget=audit] pre").inner_text()
        assert shown.splitlines() == found.summary(verbose=False).splitlines()


def test_a_file_that_cannot_be_judged_is_answered_in_words(page, tmp_path):
    path = tmp_path / "empty.npz"
    np.savez(path, q=np.zeros(3))
    page.get_by_label("A file, .npz").set_input_files(path)
    page.get_by_role("button", name="Audit").click()
    shown = page.locator("[data-lab-widget=audit] pre")
    playwright.expect(shown).to_contain_text("labkernels: empty.npz", timeout=WAIT_MS)
    assert json.loads(json.dumps(shown.inner_text())).count("\n") == 0

"""A cell %%cuda NAME or %%triton NAME is the answer to that assignment."""

import re

from book.solutions import solution
from labkernels.chapters import exercises


class Shell:
    """Stands in for the shell that IPython gives to an extension."""

    def __init__(self):
        self.magics = {}

    def register_magic_function(self, function, magic_kind, magic_name):
        self.magics[magic_kind, magic_name] = function


def test_the_extension_brings_both_cells():
    shell = Shell()
    exercises.load_ipython_extension(shell)
    assert sorted(shell.magics) == [("cell", "cuda"), ("cell", "triton")]
    answer = shell.magics["cell", "cuda"](" causal_mask \n", solution("causal_mask"))
    assert answer.passed
    assert repr(answer).startswith("Right.\nAll 14 requests")
    wrong = shell.magics["cell", "cuda"]("causal_mask", exercises.get("causal_mask").starter)
    assert repr(wrong).startswith("Not yet.\nThis is still the starter")


def test_lines_are_counted_as_the_cell_shows_them():
    shell = Shell()
    exercises.load_ipython_extension(shell)
    cell = "LAB_DEVICE float in_log2_units(float s, float scale) {\n  return s * scale\n}\n"
    report = shell.magics["cell", "cuda"]("log2_units", cell)
    assert re.match(r"Line 3, column \d+: expected ';'", report.lines[0])
    cell = solution("triton_update").strip().replace("tl.max(b_s", "tl.largest(b_s")
    report = shell.magics["cell", "triton"]("triton_update", cell)
    assert "Line 4" in "\n".join(report.lines)

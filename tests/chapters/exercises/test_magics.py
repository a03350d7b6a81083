"""A cell %%cuda NAME or %%triton NAME is the answer to that assignment."""

import re

from labkernels.chapters import exercises


class Shell:
    """What IPython's shell offers an extension."""

    def __init__(self):
        self.magics = {}

    def register_magic_function(self, function, magic_kind, magic_name):
        self.magics[magic_kind, magic_name] = function


def test_the_extension_brings_both_cells():
    shell = Shell()
    exercises.load_ipython_extension(shell)
    assert sorted(shell.magics) == [("cell", "cuda"), ("cell", "triton")]
    answer = shell.magics["cell", "cuda"](" causal_mask \n", exercises.get("causal_mask").solution)
    assert answer.passed
    assert repr(answer).startswith("Right.\nAll 7 requests")
    wrong = shell.magics["cell", "cuda"]("causal_mask", exercises.get("causal_mask").starter)
    assert repr(wrong).startswith("Not yet.\nThis is still the starter")


def test_the_package_names_assignments_that_exist():
    named = re.findall(r"%%(?:cuda|triton) (\w+)", exercises.__doc__)
    assert len(named) == 2
    assert set(named) <= set(exercises.names())

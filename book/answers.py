"""The cell in which a reader answers an exercise and checks the answer, as Python source."""

import textwrap

from labkernels.chapters import exercises
from labkernels.chapters.exercises.questions import questions


def cell(name: str) -> str:
    """Returns an answer to begin from, and the check that says what it lacks."""
    if name in questions():
        begun = f"answer = None  # {questions()[name].asks}"
    else:
        begun = f"answer = {literal(exercises.get(name).starter)}"
    return f'{begun}\nexercises.check("{name}", answer)'


def literal(starter: str) -> str:
    """Returns a starter in Python: a number, or a string whose lines begin at the margin."""
    starter = textwrap.dedent(starter).strip()
    if starter.isdigit():
        return starter
    return f'r"""\n{starter}\n"""' if "\n" in starter else repr(starter)

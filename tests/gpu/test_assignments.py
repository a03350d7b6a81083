"""Right answers to the assignments on small kernels have the same bits on the GPU."""

import pytest

from labkernels.chapters import exercises

pytestmark = pytest.mark.gpu

NAMES = [
    name
    for name in exercises.names()
    if exercises.get(name).grader in ("attention", "fragments", "pipeline")
]


@pytest.mark.parametrize("name", NAMES)
def test_a_right_answer_has_the_same_bits(name):
    report = exercises.check(name, exercises.get(name).solution)
    assert report.passed
    assert report.lines[-1] == "On this machine's GPU all bits are the same."

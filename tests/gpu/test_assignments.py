"""Right answers to the assignments on kernels have the same bits on the GPU."""

import importlib

import pytest

from book.solutions import solution
from labkernels.chapters import exercises
from labkernels.chapters.primers import machine

pytestmark = pytest.mark.gpu

GRADERS = "labkernels.chapters.exercises.graders"
NAMES = [
    name
    for name in exercises.names()
    if hasattr(importlib.import_module(f"{GRADERS}.{exercises.get(name).grader}"), "ON_GPU")
]


@pytest.mark.parametrize("name", NAMES)
def test_a_right_answer_has_the_same_bits(name):
    if not machine.has_gpu("sm_90"):
        pytest.skip("ex2.approx and the CPU machine's tensor core are those of sm_90")
    report = exercises.check(name, solution(name))
    assert report.passed
    assert report.lines[-1] == "On this machine's GPU all bits are the same."

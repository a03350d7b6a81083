"""A right answer runs on a GPU too, if there is one; a stand-in takes the GPU's place here."""

import numpy as np
import pytest

from book.solutions import solution
from labkernels.chapters import exercises
from labkernels.chapters.primers import machine


@pytest.fixture
def gpu(monkeypatch):
    """Return the list of kernels that a stand-in runs on the CPU; `flip` changes an output bit."""

    class StandIn(list):
        flip = False

    ran = StandIn()

    def run(header, kernel, arguments, how, written, folders):
        ran.append(kernel)
        with monkeypatch.context() as patch:
            patch.setattr(machine, "_ON_GPU", machine.ContextVar("_OFF", default=False))
            numbers = {"threads": how["threads"], "smem_bytes": how["smem_bytes"]}
            machine.run(
                header,
                kernel,
                arguments,
                grid=how["grid"],
                **numbers,
                writes=written,
                folders=folders,
            )
        for name in written if ran.flip else ():
            arguments[name].reshape(-1).view(np.uint32)[0] ^= 1

    monkeypatch.setattr(machine, "has_gpu", lambda arch="": True)
    monkeypatch.setattr(machine, "_run_on_gpu", run)
    return ran


@pytest.mark.parametrize("name", ["maximum", "swizzle", "two_stages"])
def test_a_right_answer_has_the_same_bits_on_a_gpu(gpu, name):
    report = exercises.check(name, solution(name))
    assert report.passed
    assert report.lines[-1] == "On this machine's GPU all bits are the same."
    assert gpu


def test_other_bits_of_a_gpu_are_counted(gpu):
    gpu.flip = True
    report = exercises.check("maximum", solution("maximum"))
    assert report.passed
    assert "numbers have other bits" in report.lines[-1]


def test_a_wrong_answer_and_a_number_stay_away_from_the_gpu(gpu):
    assert not exercises.check("maximum", exercises.get("maximum").starter)
    assert exercises.check("occupancy_choice", "3, 2, 1")
    assert not gpu

"""A broken kernel is stopped in a page with the words of the native build, or has its bits."""

import hashlib
import re

import node
import pytest

from labkernels.cuda.host.build import HostKernelError
from labkernels.kernels.operation import operations
from labkernels.kernels.random_inputs import ExactNormal
from labkernels.kernels.registry import discover
from labkernels.measure.mutants.mutant import mutated
from labkernels.widgets.steps import broken

# What a page says of each part that breaks a rule of memory, in the order of broken.PARTS.
SAID = (
    "which no thread wrote",
    "no cp_async_wait lies between",
    "no cp_async_wait lies between",
    "no cp_async_wait lies between",
    "and no barrier lies between",
    "is out of bounds: byte 52 of page_table, which has 52 bytes",
    "shared memory out of bounds: byte 43104 of 43008",
)
WRONG = range(len(SAID) + 1, len(broken.PARTS) + 1)  # only their numbers are wrong
FIRST, MISSING_RESCALE = 1, "missing rescale"


@pytest.fixture(scope="module")
def folder(broken_asset):
    return broken_asset.parent


def in_a_page(folder, part):
    return node.run(node.CHECK, folder, str(part))["broken"]


def natively(part, *, checks):
    kernel = mutated(discover()[broken.KERNEL], part.edit)
    inputs = operations()["decode"].inputs(broken.case().workload, ExactNormal(0))
    step = operations()["decode"].step(inputs, kernel=kernel, checks=checks, target="h200")
    step.run()
    return step


def test_whole_kernel_passes_the_checks(folder):
    whole = in_a_page(folder, 0)
    assert whole["error"] is None
    assert all(head["inside"] for head in whole["heads"])


def test_page_names_the_mistake_as_the_native_build_does(folder):
    page = in_a_page(folder, FIRST)["error"]
    with pytest.raises(HostKernelError) as caught:
        natively(broken.PARTS[FIRST - 1], checks=True)
    kind = re.compile(r"shared byte (\d+) at \S*kernel.cuh:(\d+)")
    assert kind.search(page).groups() == kind.search(str(caught.value)).groups()


@pytest.mark.parametrize(("number", "words"), list(enumerate(SAID, 1)))
def test_page_stops_what_breaks_a_rule_of_memory(folder, number, words):
    said = in_a_page(folder, number)["error"]
    assert words in said
    assert re.search(r"thread \d+: .*\.cuh:\d+", said)


@pytest.mark.parametrize("number", WRONG)
def test_page_sees_wrong_numbers_by_their_bounds(folder, number):
    found = in_a_page(folder, number)
    assert found["error"] is None
    assert not all(head["inside"] for head in found["heads"])


def test_wrong_numbers_are_those_of_the_native_build(folder):
    bug = broken.registry.MUTANTS[MISSING_RESCALE].bug
    number = next(n for n in WRONG if bug in broken.PARTS[n - 1].words)
    step = natively(broken.PARTS[number - 1], checks=False)
    data = step.out.numpy().tobytes() + step.lse2.numpy().tobytes()
    assert in_a_page(folder, number)["sum"] == hashlib.sha256(data).hexdigest()

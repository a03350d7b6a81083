"""The words of sm_90 on the GPU do what the CPU build says: the same tests, the same bits."""

import numpy as np
import pytest

from tests.cuda import machines
from tests.cuda.host import test_boxes as boxes
from tests.cuda.host import test_roles as roles
from tests.cuda.host import test_words as words

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def gpu():
    return machines.gpu_of_sm90()


@pytest.mark.parametrize(("shape", "box", "corners"), boxes.LOADS)
def test_loads(gpu, shape, box, corners):
    boxes.check_loads(gpu, shape, box, corners)


def test_runs_of_bytes(gpu):
    boxes.check_runs(gpu)


@pytest.mark.parametrize("ring", roles.RINGS)
def test_producers_and_consumers(gpu, ring):
    found, want = roles.multiply(gpu, *ring)
    assert np.array_equal(found, want)


def test_stmatrix(gpu):
    words.check_stmatrix(gpu)


@pytest.mark.parametrize("blocks", [1, 2])
def test_four_floats_are_added_to_global_memory(gpu, blocks):
    words.check_add_global(gpu, blocks)

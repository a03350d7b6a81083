"""What chapters compute of decode and prefill: outputs, and errors by request and head."""

import numpy as np
import pytest

from labkernels.chapters import a_typo_that_looked_like_rounding as typo
from labkernels.chapters import live
from labkernels.chapters import the_test_that_could_not_fail as the_test
from labkernels.kernels.decode.inputs import decode_inputs
from labkernels.kernels.decode.workload import Decode
from labkernels.kernels.prefill.inputs import prefill_inputs
from labkernels.kernels.prefill.workload import Prefill
from labkernels.kernels.random_inputs import ExactNormal
from labkernels.measure import real_inputs

LENGTHS = (48, 17)
ROUNDS = 5e-4  # relative L2 error of fp16: 1.5 times what its two roundings make
GIVEN = {
    "decode": (decode_inputs(Decode(LENGTHS, 4, 2, 64, 16, "fp16"), ExactNormal(0)), (1, 1)),
    "prefill": (
        prefill_inputs(Prefill((5, 3), LENGTHS, 4, 2, 64, dtype="fp16"), ExactNormal(0)),
        (5, 3),
    ),
}


@pytest.mark.parametrize("operation", GIVEN)
def test_a_kernel_reads_the_rows_that_the_typo_puts_in_their_places(operation):
    given, lengths = GIVEN[operation]
    exact, misread = live.truth(given), typo.misread(given)
    kernel = live.KERNELS[operation][1]
    outs = {
        name: live.output(operation, x, kernel) for name, x in (("on", given), ("typo", misread))
    }
    cells = live.cells(operation, outs, exact, lengths).set_index("way").value
    assert (cells["on"] < ROUNDS).all()
    assert (cells["typo"] > 0.1).all()
    assert len(cells["on"]) == 2 * 4
    again = live.cells(operation, {"typo": outs["typo"]}, live.truth(misread), lengths)
    assert (again.value < ROUNDS).all()


def test_groups_of_inputs_stand_beside_each_other():
    def run(operation, inputs):
        return {"on": live.truth(inputs) * (1 + 1 / 1024)}

    drawn = {operation: inputs for operation, (inputs, _) in GIVEN.items()}
    real = real_inputs.of_both(("peaky",), "fp16", queries=2)
    found = live.beside({"random": drawn, "SmolLM2": real}, run)
    assert np.allclose(found.value, 1 / 1024)
    sizes = found.groupby(["inputs", "operation"], sort=False).size()
    assert sizes.tolist() == [2 * 4, 2 * 4, 3 * 3, 3 * 3]


def test_the_worst_of_a_request_and_head_is_its_largest():
    values = np.zeros((3, 2, 4))
    values[2, 1, 3] = 7.0
    found = live.worst("decode", {"on": values}, (2, 1))
    assert found.value.tolist() == [0, 0, 0, 7.0]
    assert found["sample"].tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize("operation", the_test.PAIRS)
def test_ten_bugs_stand_in_the_kernels_with_tensor_cores_and_without(operation):
    bugs = the_test.bugs(operation)
    assert len(bugs) == 10
    assert not {bug.needs for bug in bugs.values()} & {"high pages", "empty request"}
    for bug in bugs.values():
        assert set(the_test.PAIRS[operation]) <= set(bug.edits)

"""The contract and the verdict find each mistake seeded in the backward pass of a variant."""

import pytest
import torch

from labkernels.audit.gradients import with_gradients
from labkernels.audit.verdict import verdict
from labkernels.measure.mutants.mutant import Edit, mutated
from tests.kernels.backward.cases import backward_case, run_checked, varied_backward
from tests.kernels.contract import SPECS

VARIANT, PROBLEM, ROWS = "lab/attention/variant.cuh", "backward/problem.cuh", "backward/rows.cuh"
SCORES, SHARED = "backward/wgmma/scores.cuh", "backward/mma/gradients.cuh"
CONSUMER, COPIES = "backward/wgmma/consumer.cuh", "backward/wgmma/gradients.cuh"
FOUND = "(dq|dk|dv|dsinks) is .* off where|NaN or infinity in"
LEFT, RIGHT, CAP = {"window_left": 37}, {"window_right": 9}, {"soft_cap": 3.0}
SINKS, SLOPES, ORDERED = {"sinks": True}, {"alibi": True}, {"deterministic": True}
OF_BOTH = {
    "no derivative of the cap": (Edit(VARIANT, r"steepness = u \* \(2\.f - u\)", "steepness = 1.f"),
        CAP),
    "the slope of the head beside": (
        Edit(VARIANT, r"p\.variant\.alibi \+ head", "p.variant.alibi + (head ^ 1)"), SLOPES),
    "a sink's gradient of the other sign": (Edit(ROWS, r"-ex2_approx\(sink", "ex2_approx(sink"),
        SINKS),
    "the gradient of the sink beside": (
        Edit(ROWS, r"params\.dsinks \+ head", "params.dsinks + (head ^ 1)"), SINKS),
    "sinks without the last tile of rows": (
        Edit(ROWS, r"i < params\.n_tiles", "i < params.n_tiles - 1"), SINKS),
    "rows end a tile too early": (
        Edit(PROBLEM, r"r\.past \+ p\.variant\.window_left\)", "r.past)"), LEFT),
    "rows begin too late": (Edit(PROBLEM, r"r\.past - p\.variant\.window_right", "r.past"), RIGHT),
    "keys before the window are not cleared": (
        Edit(PROBLEM, r"row_begin<V>\(p, r, 0\) - key", "0"), LEFT),
}  # fmt: skip
WRONG = {
    "backward_mma": {
        "a key before the window": (
            Edit(PROBLEM, r"(?<=row)(?= - p\.variant\.window_left)", " - 1"), LEFT),
        "the window's first key left out": (
            Edit(PROBLEM, r"(?<=row)(?= - p\.variant\.window_left)", " + 1"), LEFT),
        "a key behind the window": (
            Edit(PROBLEM, r"1(?= \+ p\.variant\.window_right, )", "2"), RIGHT),
        "the window's last key left out": (
            Edit(PROBLEM, r"1(?= \+ p\.variant\.window_right, )", "0"), RIGHT),
        **OF_BOTH,
    },
    "backward_wgmma": {
        "a key before the window": (
            Edit(CONSUMER, r"variant\.window_left(?= \+)", "variant.window_left + 1"), LEFT),
        "the window's first key left out": (
            Edit(CONSUMER, r"variant\.window_left(?= \+)", "variant.window_left - 1"), LEFT),
        "a key behind the window": (
            Edit(CONSUMER, r"past - p\.variant\.window_right", "past - p.variant.window_right - 1"),
            RIGHT),
        "never masked": (
            Edit(SCORES, r"> static_cast<u32>\(width\)", "> static_cast<u32>(1 << 30)"), LEFT),
        "the steepness is not applied": (
            Edit(SCORES, r"e\[i\] = e\[i\] \* steepness\[i\];", ";"), CAP),
        **{name: mutant for name, mutant in OF_BOTH.items() if "derivative" not in name},
    },
}  # fmt: skip
CASES = [
    pytest.param(kernel, *mutant, id=f"{kernel}: {name}")
    for kernel, mutants in WRONG.items()
    for name, mutant in mutants.items()
]


def case_of(variant: dict):
    """Return a case with windows' edges inside and at the edges of tiles, and different heads."""
    return varied_backward(
        backward_case((150, 140, 20), (300, 140, 90), causal=False, seed=5), **variant
    )


def judged(case, kernel):
    """Return the public verdict on the gradients, which is told the variant."""
    step, forward = case.step(kernel), case.forward
    step.run()
    ends = {"cu_seqlens": forward.kv.cu_seqlens, "cu_seqlens_q": forward.cu_seqlens_q}
    how = {"scale": forward.scale, "lse2": case.lse2, **ends, **forward.variant}
    q, k, v = (x.nan_to_num() for x in (forward.q, forward.kv.k, forward.kv.v))
    found = verdict(case.out, q, k, v, named=False, **how)
    tensors = {"dout": case.dout, **step.outputs()._asdict()}
    return with_gradients(found, tensors, case.lse2)


@pytest.mark.one_in(8)
@pytest.mark.parametrize(("kernel", "edit", "variant"), CASES)
def test_a_wrong_variant_is_found(kernel, edit, variant):
    case, wrong = case_of(variant), mutated(SPECS[kernel], edit)
    with pytest.raises(AssertionError, match=FOUND):
        run_checked(case, wrong)
    assert judged(case, wrong).answer == "BUG"


@pytest.mark.parametrize("kernel", WRONG)
@pytest.mark.parametrize("variant", [LEFT | SINKS, CAP | SLOPES], ids=str)
def test_a_right_variant_is_rounding(kernel, variant):
    assert judged(case_of(variant), kernel).answer == "ROUNDING"


@pytest.mark.parametrize("kernel", WRONG)
def test_an_ordered_dq_of_a_window_has_the_same_bits_each_time(kernel):
    """The semaphores are left at 0 by the first tile that rows see, which need not be tile 0."""
    case = case_of(LEFT)
    step = case.step(kernel, **ORDERED)
    step.run()
    first = [x.clone() for x in step.outputs()]
    step.run()
    assert all(map(torch.equal, first, step.outputs()))


@pytest.mark.parametrize("kernel", WRONG)
def test_keys_before_every_window_have_gradients_of_zero(kernel):
    case = case_of(LEFT)
    step = run_checked(case, kernel)
    assert not step.dk[: 300 - 150 - 37].any()
    assert not step.dv[: 300 - 150 - 37].any()
    assert step.dk[300 - 150 - 37].any()

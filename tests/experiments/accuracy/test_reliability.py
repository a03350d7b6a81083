"""At small counts, the reliability experiment compares what it should, and sees what is wrong."""

from dataclasses import replace

import pytest
import torch

from labkernels.experiments import find
from labkernels.experiments.accuracy import reliability
from labkernels.experiments.experiment import Options
from labkernels.experiments.harness import record
from labkernels.kernels.append.workload import Append
from labkernels.kernels.decode.workload import Decode
from labkernels.kernels.operation import operations
from labkernels.kernels.registry import discover
from labkernels.records import store
from tests import fake_gpu

SMALL = Decode((60, 60), 4, 2, 64, 16, "bf16")
ASKED = {"kernel": "decode_mma", "keys_per_split": 16}


def case_of(workload=SMALL, **asked):
    asked = ASKED | asked
    return reliability.Case(reliability.STEPS, discover()[asked["kernel"]], workload, asked)


@pytest.fixture(autouse=True)
def a_gpu_that_is_none(monkeypatch):
    fake_gpu.install(monkeypatch)


def spoiled(monkeypatch, spoil):
    """Make every prepared decode call `spoil` after its run."""
    prepare = reliability.decode_step

    def step(*given, **options):
        made = prepare(*given, **options)

        def run():
            made.run()
            spoil(made)

        return replace(made, run=run)

    monkeypatch.setattr(reliability, "decode_step", step)


def test_every_kernel_is_repeated_and_every_decode_changes():
    cases = [cell.of for cell in find("reliability").chosen(Options())]
    listed = {name: k for name, k in discover().items() if k.operation in operations()}
    written = {name for name, k in listed.items() if k.language in ("cuda", "triton")}
    assert {case.kernel.name for case in cases if case.what == reliability.REPEATS} == written
    changing = [case.kernel.name for case in cases if case.what == reliability.STEPS]
    assert changing[0] == reliability.CHOSEN
    assert set(changing) == {name for name in written if discover()[name].operation == "decode"}


@pytest.mark.parametrize("what", ["another bit", "nothing written"])
def test_other_bits_are_counted(monkeypatch, what):
    monkeypatch.setattr(reliability, "require_right", lambda *given: None)
    runs = []

    def spoil(step):
        runs.append(1)
        if len(runs) > 3 and what == "nothing written":  # the first three are what is expected
            step.lse2.fill_(torch.nan)
        elif len(runs) > 3 and len(runs) % 4 == 0:
            step.out.view(torch.int16)[0, 0, :1].bitwise_xor_(1)

    spoiled(monkeypatch, spoil)
    watched = reliability.changing(case_of(), 3, 0, "cpu")
    assert watched.count(*((6, 3) if what == "nothing written" else (8, 1))) == (
        (6, 0) if what == "nothing written" else (2, 0)
    )


def test_a_wrong_first_answer_is_refused(monkeypatch):
    spoiled(monkeypatch, lambda step: step.out.mul_(1.5))
    with pytest.raises(ValueError, match="decode_mma: worst error .* of its bound"):
        reliability.changing(case_of(), 3, 0, "cpu")


def test_steps_over_changing_lengths_and_pages_give_the_same_bits():
    assert reliability.changing(case_of(), 6, 0, "cpu").count(12, 3) == (0, 0)
    with pytest.raises(ValueError, match="runs = 10, allowed: multiples of 3"):
        reliability.changing(case_of(), 6, 0, "cpu").count(10, 3)


def test_an_append_is_repeated_from_the_same_lengths():
    work = Append((0, 17), (5, 3), 2, 64, 16, "bf16")
    case = reliability.Case(reliability.REPEATS, discover()["append"], work, {"kernel": "append"})
    assert reliability.fixed(case, 0, "cpu").count(4, 1) == (0, 0)


def test_rows_fit_the_table(monkeypatch, tmp_path):
    monkeypatch.setattr(reliability, "CHANGING", replace(SMALL, kv_lens=(40,)))
    experiment = replace(find("reliability"), needs_gpu=False)
    options = Options(quick=True, out=tmp_path, commit="abc1234", only=reliability.STEPS)
    outcome = record(experiment, replace(options, say=lambda line: None))
    assert outcome.failures == ()
    (row,) = store.read(tmp_path / reliability.DATA_FILE)
    assert (row["runs"], row["different"], row["grown_bytes"]) == (8, 0, 0)

"""At small counts, the reliability experiment compares what it should, and sees what is wrong."""

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from labkernels.experiments import find  # noqa: E402
from labkernels.experiments.accuracy import reliability  # noqa: E402
from labkernels.experiments.experiment import Options  # noqa: E402
from labkernels.experiments.harness import record  # noqa: E402
from labkernels.kernels.append.workload import Append  # noqa: E402
from labkernels.kernels.decode.workload import Decode  # noqa: E402
from labkernels.kernels.registry import discover  # noqa: E402
from labkernels.records import store  # noqa: E402
from tests import fake_gpu  # noqa: E402

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
    written = {name for name, k in discover().items() if k.language in ("cuda", "triton")}
    assert {case.kernel.name for case in cases if case.what == reliability.REPEATS} == written
    changing = [case.kernel.name for case in cases if case.what == reliability.STEPS]
    assert changing[0] == reliability.CHOSEN
    decoders = {name for name in written if discover()[name].operation == "decode"}
    assert set(changing) == decoders
    assert reliability.RUNS % reliability.QUICK_RUNS == reliability.OTHERS_RUNS % 8 == 0
    for case in cases:
        assert (
            case.instance is not None
            or case.kernel.name == "append"
            or (case.kernel.language == "triton")
        )


def test_steps_over_changing_lengths_and_pages_give_the_same_bits():
    assert reliability.changing(case_of(), 6, 0, "cpu").count(12, 3) == (0, 0)
    with pytest.raises(ValueError, match="runs = 10, allowed: multiples of 3"):
        reliability.changing(case_of(), 6, 0, "cpu").count(10, 3)


def test_other_bits_are_counted(monkeypatch):
    runs = []

    def spoil(step):
        runs.append(1)
        if len(runs) > 3 and len(runs) % 4 == 0:  # the first three are what is expected
            step.out.view(torch.int16)[0, 0, :1].bitwise_xor_(1)

    spoiled(monkeypatch, spoil)
    watched = reliability.changing(case_of(), 3, 0, "cpu")
    assert watched.count(8, 1) == (2, 0)


def test_a_step_that_writes_nothing_is_counted(monkeypatch):
    monkeypatch.setattr(reliability, "require_right", lambda *given: None)
    calls = []

    def spoil(step):
        calls.append(1)
        if len(calls) > 3:  # the fresh steps were right
            step.lse2.fill_(torch.nan)

    spoiled(monkeypatch, spoil)
    assert reliability.changing(case_of(), 3, 0, "cpu").count(6, 3) == (6, 0)


def test_a_wrong_first_answer_is_refused(monkeypatch):
    spoiled(monkeypatch, lambda step: step.out.mul_(1.5))
    with pytest.raises(ValueError, match="decode_mma: worst error .* of its bound"):
        reliability.changing(case_of(), 3, 0, "cpu")


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

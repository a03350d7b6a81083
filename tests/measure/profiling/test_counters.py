"""Without a profiler, tables are read, failures are named, and calls travel as JSON."""

import json
import stat
from dataclasses import replace

import pytest

from labkernels.experiments.performance import counters as experiment
from labkernels.measure import ladder
from labkernels.measure.implementation import with_tile
from labkernels.measure.profiling import child, counters
from labkernels.measure.profiling.child import Call
from labkernels.records import schema

CALL = Call("prefill_mma", length=256)
METRICS = [m for m in counters.METRICS if m.name in ("time", "tensor_pipe", "bank_conflicts")]
COLUMN = "thread Domain:Push/Pop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg"


def table(*rows):
    """Return the profiler's log of kernels, each (label, function, ns, percent, conflicts)."""
    head = ("ID", COLUMN, "Kernel Name", *(metric.ncu for metric in METRICS))
    lines = [head, ("", "", "", "ns", "%", "")]
    for i, (label, function, *values) in enumerate(rows):
        lines.append((i, f'7  ""<default domain>:{label}:none:none"" ', function, *values))
    text = "\n".join(",".join(f'"{cell}"' for cell in line) for line in lines)
    return f"==PROF== Connected to process 7\n{text}\n==PROF== Disconnected\n"


def test_a_table_becomes_kernels_with_their_range():
    text = table((CALL.label, "f<1, 2>", "1,417,856", "61.86", "1,234"), ("b", "g", "1", "0", ""))
    first, second = counters.parse(text, METRICS)
    assert first[:2] == (CALL.label, "f<1, 2>")
    assert first[2] == pytest.approx(
        {"time": 1.417856e-3, "tensor_pipe": 61.86, "bank_conflicts": 1234}
    )
    assert set(second[2]) == {"time", "tensor_pipe"}
    assert counters.parse(text.replace("Push/Pop", "Start/Stop"), METRICS) == [first, second]
    assert counters.parse("==PROF== nothing ran\n", METRICS) == []


def test_calls_travel_as_json():
    calls = [CALL, Call("cublas", child.GEMM, batch=0, heads=0, head_dim=0)]
    assert [Call(**fields) for fields in json.loads(child.to_json(calls))] == calls
    assert len({call.label for call in calls} | {replace(CALL, causal=True).label}) == 3
    allowed = "prefill, backward, decode, mla, gemm"
    with pytest.raises(ValueError, match=f"operation = 'append', allowed: {allowed}"):
        Call("x", "append")
    with pytest.raises(ValueError, match=r"tile = '9x9', allowed for prefill_mma: "):
        with_tile("prefill_mma", "9x9", 128)


@pytest.fixture
def profiler(tmp_path, monkeypatch):
    """Return a function that installs a stand-in profiler with a log, output and exit code."""

    def install(log="", said="", code=0):
        program = tmp_path / "ncu"
        program.write_text(
            "#!/bin/sh\n"
            'for word; do case $word in --log-file=*) log="${word#--log-file=}";; esac; done\n'
            f"cat > /dev/null\ncat > \"$log\" <<'END'\n{log}\nEND\necho '{said}'\nexit {code}\n"
        )
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setattr(counters, "_tool", lambda: str(program))

    return install


def test_a_profile_is_counters_and_refusals(profiler):
    other = Call("prefill_nope", length=256)
    wrong = Call("prefill_mma", length=512)
    said = f"refused {other.label}: no such: kernel\nfailed {wrong.label}: worst error 3"
    rows = [(call.label, "f", "1000", "50", "0") for call in (CALL, wrong)]
    profiler(table(*rows), said)
    found = counters.profile([CALL, other, wrong], metrics=METRICS)
    (item,) = found.counted
    assert (item.call, item.function, item.values["tensor_pipe"]) == (CALL, "f", 50)
    assert found.refused == {other.label: "no such: kernel"}
    assert found.failed == {wrong.label: "worst error 3"}


def test_rows_of_the_experiment_fit_their_table():
    listed = experiment.calls(128)
    assert {"prefill_mma", "prefill_fma", "torch_fa2"} <= {call.name for call in listed}
    item = counters.Counted(listed[0], "void f<1>()", {"time": 1e-3, "tensor_pipe": 50.0})
    refused = {listed[1].label: "no such kernel"}
    failed = {listed[2].label: "worst error 3"}
    rows = experiment.rows_of(listed, counters.Profile((item,), refused, failed), experiment._base)
    known = {field.name for field in schema.PREFILL_MEASUREMENTS.fields}
    assert all(set(row) <= known for row in rows)
    assert [(row["metric"], row["unit"]) for row in rows] == [
        ("time", "s"),
        ("tensor_pipe", "%"),
        ("refused", "1"),
        ("failed", "1"),
    ]
    assert rows[0]["note"] == "void f<1>()"
    names = {experiment._base(call)["kernel"] for call in listed}
    assert {"torch_fa2", "torch_fa2 backward"} <= names


@pytest.mark.parametrize(
    ("log", "said", "words"),
    [
        ("==ERROR== ERR_NVGPUCTRPERM - no permission", "", "does not let this user read counters"),
        ("", "RuntimeError: CUDA error", "ncu failed: RuntimeError: CUDA error"),
        (table(("", "stray", "1000", "50", "0")), "", "a kernel outside of every call: stray"),
    ],
)
def test_a_failure_is_said_in_words(profiler, monkeypatch, log, said, words):
    profiler(log, said, code=int(not log.startswith("==PROF")))
    with pytest.raises(RuntimeError, match=words):
        counters.profile([CALL], metrics=METRICS)
    monkeypatch.setattr(counters, "_tool", lambda: None)
    assert "install NVIDIA Nsight Compute" in counters.available()
    with pytest.raises(RuntimeError, match="ncu is neither on the PATH"):
        counters.profile([CALL])


def test_the_ladders_are_counted_rung_by_rung():
    for operation in ladder.operations():
        rungs = experiment.rungs(operation)
        assert [(call.operation, call.name, call.tile) for call in rungs] == [
            (operation, rung.kernel, rung.tile) for rung in ladder.rungs(operation)
        ]
    on = [experiment._base(call)["tensor_cores"] for call in experiment.rungs("prefill")]
    assert on == ["off"] + ["on"] * (len(on) - 1)


@pytest.mark.parametrize(
    "call",
    [
        Call("prefill_mma", batch=2, length=96, heads=2, head_dim=64, tile="64x32x4x1x2-backward"),
        Call("prefill_fma", batch=1, length=77, heads=2, head_dim=64, causal=True),
        Call("backward_mma", child.BACKWARD, batch=1, length=64, heads=1, head_dim=64),
        Call("decode_mma", child.DECODE, batch=2, length=50, heads=8, group=4, tile="4x16x3x2"),
        Call("cublas", child.GEMM, batch=0, length=128, heads=0, head_dim=0),
    ],
    ids=lambda call: call.name,
)
def test_a_call_judges_its_own_output(call):
    ready = child.prepare(call, device="cpu")
    assert ready.wrong() is not None, "nothing has been computed yet"
    ready.run()
    assert ready.wrong() is None

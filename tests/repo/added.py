"""Each thing that was added to the copy is found; `test_one_copy.py` runs these tests there."""

import pytest

from labkernels import cli, experiments, hardware, ops
from labkernels.audit import importers
from labkernels.experiments.experiment import Options
from labkernels.experiments.sweep import record
from labkernels.kernels.decode.workload import Decode
from labkernels.kernels.operation import operations
from labkernels.kernels.registry import discover, kernels_of
from labkernels.measure.benchmark import benchmark
from labkernels.measure.implementation import implementations
from labkernels.measure.peers import peer
from labkernels.records import store
from tests import fake_gpu
from tests.kernels.contract import run_checked
from tests.kernels.decode.cases import decode_case

WORK = Decode((5, 0, 40), 4, 2, 64, 16, "bf16")


def measure(monkeypatch, operation, name):
    """Return the measurement of a kernel or peer, whose output must be right."""
    fake_gpu.install(monkeypatch)
    of, item = operations()[operation], implementations(operation)[name]
    how = {"repeats": 3, "seed": 0, "device": "cpu", "graph": True}
    result = benchmark(of, WORK, [item], **how)
    assert result.reasons == ()
    found = result.measured[name]
    assert 0 < found.errors.bound_ratio < 1
    return found


def test_an_operation(monkeypatch):
    assert list(kernels_of("toy")) == ["toy_reference", "toy_fma"]
    assert discover()["toy_fma"].header == "toy/fma/kernel.cuh"
    assert list(operations()["toy"].bit_cases(discover()["toy_fma"]))
    measure(monkeypatch, "toy", "toy_fma")


def test_a_gpu_and_an_importer(capsys):
    assert hardware.gpu("toy").sm_count == 100
    assert cli.main(["budget", "toy_fma", "--head-dim", "64", "--gpu", "toy"]) == 0
    assert capsys.readouterr().out.startswith("toy_fma for A toy of one hundred SMs")
    assert ".toy" in [module.FORMAT for module in importers.importers()]
    assert cli.main(["audit", "dump.toy"]) == 0
    assert capsys.readouterr().out.startswith(("LESS EXACT", "ROUNDING"))


def test_a_kernel(capsys):
    kernel = discover()["decode_toy"]
    assert "decode_toy" in kernels_of("decode", "cuda")
    assert (kernel.header, kernel.operation) == ("decode/toy/kernel.cuh", "decode")
    case = decode_case((0, 1, 17, 90), dtype="bf16")
    plan = run_checked(case, kernel, keys_per_split=64).plan
    assert (plan.kernel, plan.why[:21]) == ("decode_toy", "decode_toy: named by ")
    assert "decode_toy" in ops.decode(case.q, case.cache).plan.why
    found = implementations("decode")["decode_toy"]
    assert (found.library, found.tensor_cores) == ("cuda", "off")
    cases = operations()["decode"].bit_cases(kernel)
    assert {case.instance.kernel for case in cases} == {"decode_toy"}
    assert cli.main(["budget", "decode_toy", "--head-dim", "64"]) == 0
    assert "A toy: its parent under another name." in capsys.readouterr().out


def test_an_experiment(tmp_path):
    out = tmp_path / "data"
    outcome = record(experiments.find("toy"), Options(out=out, commit="abc1234", say=len))
    assert outcome.failures == ()
    rows = store.read(out / "performance" / "toy.csv")
    assert [(row["kernel"], row["kv_len"]) for row in rows] == [("toy", 16), ("toy", 32)]
    assert {row["commit"] for row in rows} == {"abc1234"}


def test_a_peer(monkeypatch):
    assert "toy_decode" in peer.peers_of("decode")
    assert "toy_decode" not in peer.peers_of("prefill")
    assert peer.build("decode", [("bf16", 64)])["toy"] == "no compiler for decode of [('bf16', 64)]"
    found = measure(monkeypatch, "decode", "toy_decode")
    assert (found.implementation.library, found.step.version) == ("toy", "toy 1")


def test_a_command(capsys):
    assert cli.main(["greet", "reader"]) == 0
    assert capsys.readouterr().out == "hello, reader\n"
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    assert "say a name" in capsys.readouterr().out


def test_a_copy_that_kept_its_name_is_refused():
    parent = discover()["decode_toy"].folder
    twin = parent.with_name("twin")
    twin.mkdir()
    for name in ("__init__.py", "spec.py", "kernel.cuh"):
        (twin / name).write_text((parent / name).read_text())
    discover.cache_clear()
    with pytest.raises(ValueError, match=r"'decode_toy' of two kernels, .*toy and .*twin, allowed"):
        discover()

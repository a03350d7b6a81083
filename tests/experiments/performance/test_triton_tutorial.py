"""Tests of the tutorial kernel as a peer, without a GPU."""

from pathlib import Path

import pytest

from labkernels.experiments.experiment import Cell, Options
from labkernels.experiments.harness import Recording
from labkernels.experiments.performance import triton_tutorial
from labkernels.kernels.prefill.operation import OPERATION
from labkernels.kernels.prefill.workload import Prefill
from labkernels.measure.peers import triton_tutorial as peer
from labkernels.records import schema
from tests import fake_gpu


def test_without_its_file_there_is_no_such_peer(tmp_path):
    assert "--peer-path" in peer.missing(None)
    assert peer.missing(tmp_path / "nope.py") == "nope.py: no such file"
    file = tmp_path / "tutorial.py"
    file.write_text("attention = None")
    assert peer.missing(file) is None
    assert peer.load(file).attention is None


def test_every_candidate_is_compiled_once():
    jobs = list(peer.compile_jobs(Path("t.py"), (64, 128), 3))
    assert len(jobs) == len(set(jobs)) == 2 * (2 + 1) * 3
    assert {job[1:4] for job in jobs} == {
        (d, causal, way) for d in (64, 128) for causal, way in ((0, 0), (0, 1), (1, 0))
    }


PRETENDED = """
from torch.nn.functional import scaled_dot_product_attention


def attention(q, k, v, causal, scale, warp_specialize):
    if warp_specialize:
        raise RuntimeError("no specialised warps here")
    return scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale)
"""


@pytest.mark.parametrize("causal", [False, True])
def test_the_tutorials_output_is_judged_and_its_refusal_recorded(monkeypatch, tmp_path, causal):
    """A file with the tutorial's interface is measured, with the mask in the names of its rows."""
    fake_gpu.install(monkeypatch)
    (tmp_path / "tutorial.py").write_text(PRETENDED)
    options = Options(out=tmp_path, peer_path=tmp_path / "tutorial.py", repeats=3)
    recording = Recording(triton_tutorial.EXPERIMENT, options, [])
    work = Prefill((64, 64), (64, 64), 2, 2, 64, causal=causal, dtype="fp16")
    monkeypatch.setattr(triton_tutorial, "_compile", lambda recording: None)
    found = [row for _, row in triton_tutorial.rows(Cell(work.label, work), recording)]
    known = {field.name for field in schema.MEASUREMENTS.fields}
    assert all(set(row) <= known for row in found)
    word = "causal" if causal else "full"
    rates = {row["kernel"]: row["value"] for row in found if row["metric"] == "rate"}
    assert rates[f"triton_tutorial, {word}"] == pytest.approx(work.flops / fake_gpu.GRAPH_S)
    assert set(rates) == {
        f"{name}, {word}" for name in ("triton_prefill", "torch_fa2", "triton_tutorial")
    }
    refused = [row for row in found if row["metric"] == "refused"]
    assert [row["kernel"] for row in refused] == (
        [] if causal else ["triton_tutorial, warps specialised, full"]
    )
    assert all("no specialised warps" in row["note"] for row in refused)
    assert recording.failures == []


def test_a_wrong_output_of_the_tutorial_has_no_times(monkeypatch, tmp_path):
    fake_gpu.install(monkeypatch)
    (tmp_path / "tutorial.py").write_text(PRETENDED.replace("scale=scale", "scale=2 * scale"))
    options = Options(out=tmp_path, peer_path=tmp_path / "tutorial.py", repeats=3)
    work = Prefill((64, 64), (64, 64), 2, 2, 64, causal=True, dtype="fp16")
    of = triton_tutorial.participants(work, options)
    result = Recording(triton_tutorial.EXPERIMENT, options, []).benchmark(
        OPERATION, work, of, graph=True
    )
    assert set(result.measured) == {"triton_prefill", "torch_fa2"}
    assert [(reason.name, reason.metric) for reason in result.reasons] == [
        ("triton_tutorial", "failed")
    ]

"""Tests of the tutorial kernel as a peer, without a GPU."""

from pathlib import Path

from labkernels.experiments.performance import triton_tutorial
from labkernels.experiments.performance.triton_tutorial import Shape
from labkernels.measure.peers import triton_tutorial as peer
from labkernels.measure.timing import quartiles
from labkernels.records import schema


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


def test_rows_name_the_mask_and_count_half_of_a_causal_square():
    full, causal = Shape(64, False), Shape(64, True)
    assert full.flops == 2 * causal.flops == 4 * 4 * 32 * 4096**2 * 64
    times = {"triton_prefill": (quartiles([1e-3, 2e-3, 3e-3]), None)}
    rows = triton_tutorial.rows_of(causal, times, {"triton_tutorial": "no file"})
    known = {field.name for field in schema.MEASUREMENTS.fields}
    assert all(set(row) <= known for row in rows)
    (rate,) = (row["value"] for row in rows if row["metric"] == "rate")
    assert rate == causal.flops / 2e-3
    assert rows[-1]["kernel"] == "triton_tutorial, causal"
    assert rows[-1]["note"] == "no file"

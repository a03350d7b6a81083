"""On the CPU, the decode experiment writes both files with their rows, and names failures."""

import pytest

pytest.importorskip("torch")

from labkernels.experiments.experiment import Options
from labkernels.experiments.harness import record
from labkernels.experiments.performance import decode_tensor_cores
from labkernels.kernels.decode.workload import Decode
from labkernels.records import store
from tests.measure.test_benchmark import EVERYONE

WORKLOAD = Decode.uniform(2, 40, q_heads=4, kv_heads=2, head_dim=64, dtype="fp16")


@pytest.fixture
def tiny_experiment(made_up_gpu, monkeypatch):
    cells = [
        decode_tensor_cores.GridCell(WORKLOAD, "case 000", accuracy_map=True),
        decode_tensor_cores.GridCell(
            Decode.uniform(1, 16, q_heads=2, kv_heads=2, head_dim=64), "group 1"
        ),
    ]
    monkeypatch.setattr(decode_tensor_cores, "grid", lambda *, quick: cells)
    monkeypatch.setattr(decode_tensor_cores, "implementations", lambda *_: EVERYONE)


def test_a_run_writes_both_files_and_names_failures(tiny_experiment, tmp_path):
    said = []
    options = Options(out=tmp_path, repeats=12, commit="abc1234", say=said.append)
    outcome = record(decode_tensor_cores.EXPERIMENT, options)
    rows = store.read(store.path_of("decode_tensor_cores", tmp_path))
    maps = store.read(store.path_of("decode_accuracy", tmp_path))
    assert outcome.rows == len(rows) + len(maps)
    assert [line.split(" on ")[0] for line in outcome.failures] == ["wrong"] * 2
    timed = store.select(rows, {"metric": "time_graph", "statistic": "median"})
    assert {row["kernel"] for row in timed} == {"decode_fma", "decode_mma"}
    assert {row["metric"] for row in rows} >= {"failed", "refused", "difference", "bandwidth"}
    assert {row["kernel"] for row in maps} == {
        "decode_fma",
        "decode_mma",
        "decode_mma - decode_fma",
    }
    assert len(maps) == 3 * 2 * 4
    assert (tmp_path / "datapackage.json").exists()
    assert any("copy ceiling 4.00 TB/s" in line for line in said)


def test_flashinfer_sits_out_other_head_dims(tiny_experiment, tmp_path):
    options = Options(out=tmp_path, commit="abc1234", say=lambda line: None)
    record(decode_tensor_cores.EXPERIMENT, options)
    rows = store.read(store.path_of("decode_tensor_cores", tmp_path))
    assert "refuser" in {row["kernel"] for row in rows}
    cells = decode_tensor_cores.cells(options)
    assert not any(cell.of.with_flashinfer for cell in cells)
    assert "absent" not in {row["kernel"] for row in rows}

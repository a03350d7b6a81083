"""On the CPU, the decode experiment writes its rows, and names failures."""

from dataclasses import replace

from labkernels.experiments.experiment import Options
from labkernels.experiments.performance import decode_tensor_cores
from labkernels.experiments.sweep import record
from labkernels.experiments.timed import GridCell
from labkernels.kernels.decode.workload import Decode
from labkernels.records import store
from tests.measure.test_benchmark import EVERYONE


def test_a_run_writes_its_rows_and_names_failures(made_up_gpu, monkeypatch, tmp_path):
    work = Decode.uniform(2, 40, q_heads=4, kv_heads=2, head_dim=64, dtype="fp16")
    small = Decode.uniform(1, 16, q_heads=2, kv_heads=2, head_dim=64)
    cells = [GridCell(work, "case 000"), GridCell(small, "group 1")]
    timed = replace(decode_tensor_cores.SIXTEEN, grid=lambda *, quick: cells)
    experiment = decode_tensor_cores.with_ceilings(timed, "a test", "decode_tensor_cores")
    monkeypatch.setattr(decode_tensor_cores, "implementations", lambda *_: EVERYONE)
    said = []
    options = Options(out=tmp_path, repeats=12, commit="abc1234", say=said.append)
    outcome = record(experiment, options)
    rows = store.read(store.path_of("decode_tensor_cores", tmp_path))
    assert outcome.rows == len(rows)
    assert [line.split(" on ")[0] for line in outcome.failures] == ["wrong"] * 2
    timed = store.select(rows, {"metric": "time_graph", "statistic": "median"})
    assert {row["kernel"] for row in timed} == {"decode_fma", "decode_mma"}
    assert {row["metric"] for row in rows} >= {"failed", "refused", "bandwidth"}
    assert "absent" not in {row["kernel"] for row in rows}  # FlashInfer sits out other head_dims
    assert (tmp_path / "datapackage.json").exists()
    assert any("copy ceiling 4.00 TB/s" in line for line in said)

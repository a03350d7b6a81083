"""The price of batch invariance is measured on all grids, and each row says which plan it is of."""

from labkernels.experiments.experiment import Options
from labkernels.experiments.performance import batch_invariance as price
from labkernels.experiments.sweep import record
from labkernels.kernels.decode.operation import OPERATION as DECODE
from labkernels.kernels.decode.schedule import SHORTEST_SPLIT
from labkernels.kernels.decode.workload import Decode
from labkernels.records import store

WORKLOAD = Decode.uniform(2, 40, q_heads=4, kv_heads=2, head_dim=64, dtype="fp16")


def test_the_grid_has_all_operations_and_small_batches():
    cells = [cell.of for cell in price.cells(Options())]
    assert {cell.operation.name for cell in cells} == {"decode", "prefill", "mla"}
    assert {cell.why for cell in cells} == {"grid", "small batch"}
    assert all({price.FREE, price.INVARIANT} <= set(cell.plans) for cell in cells)


def test_rows_name_their_plan(made_up_gpu, monkeypatch, tmp_path):
    plans = {price.FREE: {}, price.INVARIANT: {"batch_invariant": True}}
    cells = [price.Priced(DECODE, WORKLOAD, "grid", plans)]
    monkeypatch.setattr(price, "grid", lambda *, quick: cells)
    options = Options(out=tmp_path, repeats=3, commit="abc1234", say=lambda line: None)
    assert not record(price.EXPERIMENT, options).failures
    rows = store.read(tmp_path / price.DATA_FILE)
    timed = store.select(rows, {"metric": "time_graph", "statistic": "median"})
    assert {row["note"] for row in timed} == {"free, grid", "invariant, grid"}
    keys = {row["note"]: row["value"] for row in rows if row["metric"] == "keys_per_split"}
    assert keys["invariant, grid"] == SHORTEST_SPLIT

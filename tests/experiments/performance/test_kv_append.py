"""Tests of the append experiment, without a GPU."""

import pytest

torch = pytest.importorskip("torch")

from labkernels.experiments.performance import kv_append  # noqa: E402
from labkernels.kernels.append.operation import OPERATION  # noqa: E402
from labkernels.measure.benchmark import benchmark  # noqa: E402
from labkernels.measure.implementation import implementations  # noqa: E402
from labkernels.records import schema  # noqa: E402
from tests import fake_gpu  # noqa: E402

SMALL = kv_append.shape(3, 5, 20, 2, 64, page_size=4)


@pytest.mark.parametrize("mistake", [None, "a row too many", "a wrong bit"])
def test_rows_fit_the_table_and_count_each_byte_twice(monkeypatch, mistake):
    fake_gpu.install(monkeypatch)
    found = implementations("append")
    chosen = [found[name] for name in ("append", "torch_index_copy")]
    if mistake:
        chosen[0] = spoiled(chosen[0], mistake)
    result = benchmark(
        OPERATION,
        SMALL,
        chosen,
        repeats=3,
        seed=0,
        graph=True,
        device="cpu",
        beside=kv_append.plain_copies,
    )
    rows = kv_append.rows_of(SMALL, result)
    known = {field.name for field in schema.MEASUREMENTS.fields}
    assert all(set(row) <= known for row in rows)
    rates = {r["kernel"]: r["value"] for r in rows if r["metric"] == "bandwidth"}
    inputs = result.inputs
    moved_bytes = 2 * (inputs.k_new.nbytes + inputs.v_new.nbytes)
    assert rates["torch_index_copy"] == rates["torch_copy"] == moved_bytes / fake_gpu.GRAPH_S
    failed = [(row["kernel"], row["note"]) for row in rows if row["metric"] == "failed"]
    wrong = "the pools do not hold the new rows, or hold something else"
    assert failed == ([("append", wrong)] if mistake else [])
    assert ("append" in rates) is not bool(mistake)


def spoiled(item, mistake):
    """Return an append after which one of the pools is wrong."""
    from dataclasses import replace

    def prepare(inputs):
        step = item.prepare(inputs)

        def run():
            step.run()
            if mistake == "a row too many":
                inputs.cache.k[int(inputs.cache.page_table[0, 0]), 0] = 1.0
            else:
                inputs.cache.v.flatten(0, 1)[inputs.slots[7], 1, 3] += 1

        return replace(step, run=run)

    return replace(item, prepare=prepare)

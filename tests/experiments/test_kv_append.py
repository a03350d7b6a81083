"""The append experiment, as far as it runs without a GPU."""

import pytest

torch = pytest.importorskip("torch")

from labkernels.experiments import Options, kv_append  # noqa: E402
from labkernels.experiments.kv_append import Shape  # noqa: E402
from labkernels.measure.timing import quartiles  # noqa: E402
from labkernels.records import schema  # noqa: E402

SMALL = Shape(3, 5, 20, 2, 64, page_size=4)


@pytest.mark.parametrize("name", ["append", "torch_index_copy"])
def test_a_contender_writes_the_rows_again_and_again(name):
    case = kv_append.make_case(SMALL, seed=0, device="cpu")
    assert not case.holds_the_rows()
    _, run, _ = kv_append.contenders(case)[name]
    for _ in range(2):
        run()
        assert case.holds_the_rows()


def test_a_row_too_many_or_a_wrong_bit_is_seen():
    case = kv_append.make_case(SMALL, seed=0, device="cpu")
    _, run, _ = kv_append.contenders(case)["append"]
    run()
    case.cache.k[int(case.cache.page_table[0, 0]), 0] = 1.0
    assert not case.holds_the_rows()
    case = kv_append.make_case(SMALL, seed=0, device="cpu")
    kv_append.contenders(case)["append"][1]()
    case.cache.v.flatten(0, 1)[case.slots[7], 1, 3] += 1
    assert not case.holds_the_rows()


def test_rows_fit_the_table_and_count_each_byte_twice():
    case = kv_append.make_case(SMALL, seed=0, device="cpu")
    _, _, plan = kv_append.contenders(case)["append"]
    took = quartiles([1e-6, 2e-6, 3e-6])
    times = {"append": ("cuda", took, plan), "torch_copy": ("torch", took, None)}
    rows = kv_append.rows_of(SMALL, times, {"flashinfer_append": ("flashinfer", "refused it")})
    known = {field.name for field in schema.MEASUREMENTS.fields}
    assert all(set(row) <= known for row in rows)
    (rate,) = (r["value"] for r in rows if (r["kernel"], r["metric"]) == ("append", "bandwidth"))
    assert rate == 2 * (case.k_new.nbytes + case.v_new.nbytes) / 2e-6
    assert [row["note"] for row in rows if row["metric"] == "failed"] == ["refused it"]


def test_a_quick_run_writes_elsewhere():
    with pytest.raises(ValueError, match="allowed: --quick with --out FOLDER"):
        kv_append.run(Options(quick=True))

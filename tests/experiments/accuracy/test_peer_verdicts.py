"""Tests of the experiment with the verdict on peers' kernels, without a GPU."""

import pytest
import torch

from labkernels import formats
from labkernels.experiments.accuracy import peer_verdicts as others
from labkernels.measure.peers.peer import backends
from labkernels.numerics.verdict import verdict
from labkernels.records import schema, store

SMALL = (others.Shape(2, 1, 65, False, 0.0), others.Shape(1, 33, 33, True, 1.0))


@pytest.mark.parametrize("shape", SMALL, ids=lambda shape: shape.label)
@pytest.mark.parametrize("dtype", others.DTYPES)
def test_torch_on_this_machine_is_no_bug(shape, dtype):
    given = others.tensors(shape, dtype, seed=0, device="cpu")
    for name in ("torch_math", "torch_flash"):
        out = backends()[name].run(given)
        assert out.shape == given.q.shape
        found, bias = others.judged(given, out, p_format=dtype, dtype=dtype)
        assert found.answer != verdict.BUG, found.summary()
        # a store that truncates takes about the unit roundoff of each output
        truncated = formats.named(dtype).unit_roundoff * float(out.double().abs().mean())
        assert abs(bias) < truncated / 4


def test_a_wrong_output_is_recorded_with_its_reason_in_rows_that_fit():
    shape = SMALL[0]
    given = others.tensors(shape, "bf16", seed=0, device="cpu")
    item = backends()["torch_math"]
    base = others._base(item, shape, "bf16")
    out = item.run(given)
    wrong = others.Output(shape, base, given, torch.roll(out, 1, dims=2), "")
    rows = [row for p in ("fp32", "bf16") for row in others._judged_rows(wrong, p)]
    bugs = [row for row in rows if row["metric"] == "bug"]
    assert [row["value"] for row in bugs] == [1, 1]
    assert all("BUG: " in row["note"] and "error / bound" in row["note"] for row in bugs)
    assert "index map of the output" in bugs[1]["note"]  # told how P is rounded, it finds the edit
    refused = others._refused_row(others.Output(shape, base, given, None, "no kernel"))
    assert refused["note"] == f"{shape.label}: no kernel"
    known = {field.name for field in schema.MEASUREMENTS.fields}
    assert all(set(row) <= known for row in [*rows, refused])


@pytest.fixture(scope="module")
def recorded():
    rows = store.read(store.DATA_DIR / others.DATA_FILE)
    return [row for row in rows if row["metric"] == "bug"]


def test_what_rounds_as_described_is_no_bug(recorded):
    assert {row["kernel"] for row in recorded} >= {
        name for name, item in backends().items() if item.library == "torch"
    }
    told = [row for row in recorded if row["policy"] == f"p={row['dtype']}"]
    as_told = [row for row in told if row["backend"] == "torch" or "unsplit" in row["kernel"]]
    assert [row["note"] for row in as_told if row["value"]] == []


def test_the_verdict_tells_who_keeps_p_in_fp32(recorded):
    told = [row for row in recorded if row["policy"] == "p=fp32"]
    refused = {row["kernel"] for row in told if row["value"]}
    assert "torch_math" not in refused
    assert {"torch_flash", "torch_cudnn", "torch_efficient"} <= refused

from types import SimpleNamespace

import pytest

from labkernels.experiments import rows as measured
from labkernels.kernels.backward.workload import Backward
from labkernels.kernels.decode.workload import Decode
from labkernels.kernels.mla.workload import MlaDecode
from labkernels.kernels.prefill.workload import Prefill
from labkernels.measure.judge.outputs import Errors
from labkernels.records import schema
from tests.records.conftest import PROVENANCE


def test_every_kind_of_workload_fills_the_columns_of_its_table():
    lengths, columns = (40, 300), set(measured.workload_columns(WORKLOAD)) | {"q_len", "causal"}
    latent = measured.workload_columns(MlaDecode(lengths, 17, q_len=2, page_size=16))
    assert (latent["kv_heads"], latent["head_dim"], latent["q_len"]) == (1, 576, 2)
    for kind in (Prefill, Backward):
        packed = measured.workload_columns(kind(lengths, lengths, 6, 2, 64, causal=True))
        assert (packed["page_size"], packed["q_len"], packed["causal"]) == (0, 300, True)
        assert set(packed) == set(latent) == columns <= set(schema.PREFILL_MEASUREMENTS.columns)


WORKLOAD = Decode.uniform(57, 8192, q_heads=32, kv_heads=8, dtype="fp16")


@pytest.fixture
def base():
    row = measured.base_row(
        WORKLOAD, kernel="decode_mma", backend="cuda", tensor_cores="on", tile="k16"
    )
    return {"experiment": "decode_tensor_cores", **row, **PROVENANCE}


def by_metric(rows):
    return {(row["metric"], row["statistic"]): row["value"] for row in rows}


def test_plans_errors_and_words_are_valid_rows(base):
    plan = SimpleNamespace(splits=1, keys_per_split=8192, blocks=456, launches=1)
    rows = measured.plan_rows(base, plan)
    rows += measured.error_rows(base, Errors(5e-6, -1e-9, 6e-5, 1e-6, 0.2, 1.1))
    rows.append(measured.reason_row(base, "refused", "group size 16 is not supported"))
    values = by_metric(schema.validate(row) for row in rows)
    assert values["keys_per_split", "exact"] == 8192
    assert values["error", "rmse"] == 5e-6
    assert values["refused", "exact"] == 1
    assert rows[-1]["note"] == "group size 16 is not supported"
    without = measured.error_rows(base, Errors(5e-6, 0.0, 6e-5, None, 0.2, 1.1))
    assert "lse2_error" not in {row["metric"] for row in without}

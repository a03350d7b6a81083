"""The five GPUs of the chapter compute 16-bit inputs in two ways, alike but for few bits."""

from labkernels import Prefill
from labkernels.chapters import what_a_tensor_core_computes as five


def test_five_gpus_compute_in_two_ways():
    work = Prefill((33,), (160,), 2, 2, 128, dtype="fp16")
    rows = five.differing(five.outputs("prefill", work, "prefill_mma"))
    table = {row.pop("bits of"): row for row in rows}
    assert list(table) == ["sm_80", "sm_89", "sm_90", "sm_100", "sm_120"]
    assert table["sm_80"]["sm_89"] == table["sm_90"]["sm_100"] == table["sm_90"]["sm_120"] == 0
    assert 0 < table["sm_80"]["sm_90"] < 10


def test_tensor_cores_make_the_least_time_of_a_large_prefill_shorter():
    rows = five.least_times(Prefill((1024,) * 4, (1024,) * 4, 16, 16, 128))
    assert len(rows) == len(five.GPUS)
    assert all(row["on"] < row["off"] for row in rows)

import functools

import pytest

from labkernels import hardware
from labkernels.cuda.compiler import nvrtc
from labkernels.measure import resources
from labkernels.records import store
from labkernels.variant import FULL, AttentionVariant
from tests.measure.register_fit import BAND

needs_nvrtc = pytest.mark.skipif(nvrtc.available() is not None, reason="needs NVRTC")
WHOLE = AttentionVariant(window_left=99, soft_cap=50.0, alibi=True, sinks=True)
H200 = hardware.gpu("h200")


def mma(**changes):
    kernel = resources.find("decode_mma")
    return kernel.instance(kernel.shape(**({"head_dim": 128, "group": 4} | changes)))


@needs_nvrtc
def test_ledgers_stand_beside_the_compiler():
    known = resources.resources(mma(), gpu=H200)
    assert known.compiled.smem_bytes == known.smem.total == 53248
    assert known.compiled.spill_bytes == 0
    assert known.registers.total <= known.compiled.registers
    assert known.compiled.source.startswith("compiled here by NVRTC")
    assert known.occupancy.blocks_per_sm >= 1


@needs_nvrtc
def test_reports_are_recorded_and_read_without_a_compiler(tmp_path, monkeypatch):
    instance, path = mma(), tmp_path / "compiler_reports.csv"
    assert resources.recorded(instance, arch="sm_90a", path=path) is None
    archs, started = ("sm_80", "sm_90a"), "2026-01-01T00:00:00Z"
    rows = [resources.compiler_row(instance, arch=arch, started_utc=started) for arch in archs]
    store.append(path, rows, store.schema.TABLES["compiler_reports"])
    monkeypatch.setattr(nvrtc, "available", lambda: "no cuda.core")
    monkeypatch.setattr(resources, "recorded", functools.partial(resources.recorded, path=path))
    row = resources.recorded(instance, arch="sm_90a")
    assert row == rows[1]
    assert row["entry"] == "decode_mma::decode"
    assert (row["spill_bytes"], row["smem_bytes"]) == (0, 53248)
    assert resources.recorded(instance, arch="sm_120") is None
    known = resources.resources(instance, gpu=H200)
    assert known.compiled.registers == row["registers"]
    assert "recorded from NVRTC 1" in known.compiled.source
    other = resources.resources(instance, gpu=hardware.gpu("t4"))
    assert other.compiled is None
    assert other.occupancy.blocks_per_sm >= 1


@needs_nvrtc
@pytest.mark.parametrize(
    ("kernel", "variant", "slopes"),
    [
        ("decode_mma", WHOLE, 4),
        ("decode_mma_n8", WHOLE, 4),
        ("decode_fma", WHOLE, 2),
        ("prefill_mma", AttentionVariant(alibi=True), 8),
        ("prefill_mma", AttentionVariant(window_left=99, soft_cap=50.0, sinks=True), 0),
        ("prefill_fma", WHOLE, 16),
    ],
)
def test_slopes_are_a_line_and_variants_are_predicted_near_the_compilers_number(
    kernel, variant, slopes
):
    spec = resources.find(kernel)
    plain, asked = (
        spec.instance(spec.shape(head_dim=64, group=4, variant=v), gpu=H200)
        for v in (FULL, variant)
    )
    known = resources.resources(asked, gpu=H200)
    assert known.registers.total == spec.registers(plain).total + slopes
    assert abs(known.predicted.registers / known.compiled.registers - 1) <= BAND
    row = resources.recorded(asked, arch="sm_90a")  # not that of the plain kernel
    assert row is None or row["registers"] == known.compiled.registers


def test_every_instance_is_listed_once():
    instances = list(resources.all_instances())
    assert len(instances) == len(set(instances))
    assert {instance.kernel for instance in instances} == set(resources.cuda_kernels())
    fma = [i for i in instances if i.kernel == "decode_fma" and i.head_dim == 128]
    assert {instance.rows for instance in fma} == {1, 2, 4, 8}

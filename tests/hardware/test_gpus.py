import dataclasses
import re
import tomllib
from pathlib import Path

import pytest

from labkernels import hardware
from labkernels.hardware import ARCH_MIN, ARCHS, GPUS, by_arch, fact, gpu

TABLE = tomllib.loads((Path(hardware.__file__).parent / "gpus.toml").read_text(encoding="utf-8"))
WARP_THREADS = 32


def every_row():
    yield from TABLE["every_arch"].items()
    for group in ("arch", "gpu"):
        for entry in TABLE[group].values():
            yield from ((k, v) for k, v in entry.items() if k not in ("name", "arch"))


def test_every_fact_has_value_unit_source_and_date():
    used = set()
    for field, row in every_row():
        assert set(row) == {"value", "unit", "source", "date"}, field
        assert row["source"] in TABLE["sources"], field
        assert row["unit"], field
        used.add(row["source"])
    assert used == set(TABLE["sources"])


def test_a_fact_about_an_architecture_is_written_once():
    every, arch = set(TABLE["every_arch"]), set(TABLE["arch"]["sm_90"])
    assert not every & arch
    for entry in TABLE["arch"].values():
        assert set(entry) == arch
    for entry in TABLE["gpu"].values():
        assert not set(entry) & (every | arch)


def test_the_parts_and_their_architectures():
    for name, entry in TABLE["gpu"].items():
        assert (name in GPUS) == (int(entry["arch"].removeprefix("sm_")) >= ARCH_MIN), name
    assert "t4" not in GPUS
    assert ARCHS == ("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120")
    assert gpu("h200").compile_arch == "sm_90a"
    assert gpu("b200").compile_arch == "sm_100a"
    assert gpu("rtx5090").compile_arch == "sm_120"
    assert [g.key for g in by_arch("sm_90")] == [g.key for g in by_arch("sm_90a")]
    assert [g.key for g in by_arch("sm_86")] == ["a10", "rtx3080", "rtx3090"]
    assert by_arch("sm_75") == [gpu("t4")]  # a part without kernels is known, too
    assert gpu("orin").compile_arch == "sm_87"
    assert "sm_87" not in ARCHS


ALL = (*GPUS, "t4")


@pytest.mark.parametrize("key", ALL)
def test_vendor_peaks_are_units_times_rate_times_clock(key):
    g = gpu(key)
    fp32 = 2 * g.fp32_fma_per_clk_per_sm * g.sm_count * g.boost_clock_hz
    assert fp32 == pytest.approx(g.fp32_flops, rel=0.01)
    tensor = g.tensor_flops_per_clk_per_sm * g.tensor_fp32_accumulate_rate
    # two per cent: the L40S sheet quotes its tensor peak a little below its boost clock
    assert tensor * g.sm_count * g.tensor_clock_hz == pytest.approx(g.tensor_fp16_flops, rel=0.02)


@pytest.mark.parametrize("key", ALL)
def test_limits_of_an_sm_agree(key):
    g = gpu(key)
    assert g.threads_per_sm_max == g.warps_per_sm_max * WARP_THREADS
    assert g.smem_per_block_max_bytes + g.smem_reserved_per_block_bytes == g.smem_per_sm_bytes
    assert (g.registers_per_sm, g.mufu_per_clk_per_sm) == (65536, 16)
    assert g.tensor_clock_hz <= g.boost_clock_hz
    assert g.tensor_fp32_accumulate_rate == (0.5 if "GeForce" in g.name else 1.0)
    if g.measured_copy_bytes_per_s is not None:
        assert g.measured_copy_bytes_per_s < g.dram_bytes_per_s
        assert g.measured_bf16_matmul_flops < g.tensor_fp16_flops


@pytest.mark.parametrize("key", ALL)
def test_every_number_of_a_gpu_is_a_fact_of_the_declared_type(key):
    g = gpu(key)
    for field in dataclasses.fields(g):
        value = getattr(g, field.name)
        if field.type is str or value is None:
            continue
        known = fact(key, field.name)
        assert known.value == value
        assert isinstance(value, int if field.type is int else float), field.name
        assert len(known.source) > 20
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", known.date)


def test_unknown_names_list_what_is_known():
    with pytest.raises(ValueError, match=r"gpu = 'v100', allowed: t4, a100, .*rtx5090"):
        gpu("v100")
    with pytest.raises(ValueError, match=r"arch = 'sm_70', allowed: sm_75, .*sm_90, sm_90a"):
        by_arch("sm_70")
    with pytest.raises(ValueError, match=r"field = 'colour', allowed for h200: .*sm_count"):
        fact("h200", "colour")
    with pytest.raises(ValueError, match=r"field = 'measured_copy_bytes_per_s', allowed for a10"):
        fact("a10", "measured_copy_bytes_per_s")

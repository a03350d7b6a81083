import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkernels.budget import occupancy, waves
from labkernels.hardware import GPUS, gpu

GPU_KEYS = st.sampled_from(sorted(GPUS))
THREADS = st.integers(1, 1024)
REGISTERS = st.integers(1, 255)
SMEM = st.integers(0, 240_000)


@pytest.mark.parametrize(
    ("key", "registers", "smem_bytes", "blocks_per_sm", "filled"),
    [("a100", 66, 9_216, 7, 0.60), ("a100", 182, 69_632, 2, 2.11), ("h200", 182, 69_632, 2, 1.73)],
)
def test_case_000_blocks_and_waves(key, registers, smem_bytes, blocks_per_sm, filled):
    found = occupancy(gpu(key), threads=128, registers=registers, smem_bytes=smem_bytes)
    assert found.blocks_per_sm == blocks_per_sm
    assert found.limit == "registers"
    assert round(waves(57 * 8, found, gpu(key)), 2) == filled


def test_case_004_shared_memory_differs_but_registers_allow_two_everywhere():
    by_smem = {"a100": 3, "a10": 2, "rtx3090": 2, "rtx4090": 2, "l40s": 2, "rtx5090": 2}
    for key, blocks in (by_smem | dict.fromkeys(("h100", "h200", "b200"), 4)).items():
        found = occupancy(gpu(key), threads=128, registers=255, smem_bytes=49_152)
        assert (found.by_smem, found.by_registers, found.blocks_per_sm) == (blocks, 2, 2)
        assert found.limit == "registers"
    found = occupancy(gpu("rtx3090"), threads=128, registers=255, smem_bytes=24_576)
    assert (found.limit, found.warps, found.by_smem) == ("registers", 8, 4)
    assert found.fraction == pytest.approx(0.1667, abs=1e-4)


@pytest.mark.parametrize(
    ("threads", "registers", "smem_bytes", "limit", "blocks_per_sm"),
    [
        (128, 24, 0, "warps", 16),
        (32, 32, 0, "blocks", 32),
        (128, 32, 232_448, "shared memory", 1),
        (128, 32, 232_449, "shared memory", 0),
        (1024, 128, 0, "registers", 0),
        # 16 warps fit, so five blocks of three: warps of a block are not rounded up to four
        (96, 128, 0, "registers", 5),
    ],
)
def test_limits_on_the_h200(threads, registers, smem_bytes, limit, blocks_per_sm):
    found = occupancy(gpu("h200"), threads=threads, registers=registers, smem_bytes=smem_bytes)
    assert (found.limit, found.blocks_per_sm) == (limit, blocks_per_sm)


@given(GPU_KEYS, THREADS, REGISTERS, SMEM)
def test_a_resident_set_fits_the_sm(key, threads, registers, smem_bytes):
    g = gpu(key)
    found = occupancy(g, threads=threads, registers=registers, smem_bytes=smem_bytes)
    blocks = found.blocks_per_sm
    assert blocks == min(found.by_registers, found.by_smem, found.by_warps, found.by_blocks)
    assert found.warps * 32 * registers <= g.registers_per_sm
    assert blocks * (smem_bytes + g.smem_reserved_per_block_bytes) <= g.smem_per_sm_bytes
    assert 0 <= found.fraction <= 1


@given(GPU_KEYS, *[st.tuples(each, each).map(sorted) for each in (THREADS, REGISTERS, SMEM)])
def test_more_of_a_resource_never_gives_more_blocks(key, threads, registers, smem_bytes):
    asked = {"threads": threads, "registers": registers, "smem_bytes": smem_bytes}
    least = {name: pair[0] for name, pair in asked.items()}
    for name, (_, more) in asked.items():
        found = occupancy(gpu(key), **{**least, name: more})
        assert found.blocks_per_sm <= occupancy(gpu(key), **least).blocks_per_sm


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"threads": 0}, r"threads = 0, allowed: 1 to 1024"),
        ({"threads": 1025}, r"threads = 1025, allowed: 1 to 1024"),
        ({"registers": 256}, r"registers = 256, allowed: 1 to 255"),
        ({"registers": 32.0}, r"registers = 32\.0, allowed: 1 to 255"),
        ({"smem_bytes": -1}, r"smem_bytes = -1, allowed: an integer >= 0"),
    ],
)
def test_bad_requests_are_refused(change, message):
    good = {"threads": 128, "registers": 32, "smem_bytes": 0}
    with pytest.raises(ValueError, match=message):
        occupancy(gpu("h200"), **(good | change))


def test_waves_need_a_block_that_fits():
    none = occupancy(gpu("a10"), threads=128, registers=32, smem_bytes=200_000)
    with pytest.raises(ValueError, match=r"occupancy\.blocks_per_sm = 0, allowed: .* >= 1"):
        waves(1, none, gpu("a10"))
    one = occupancy(gpu("a10"), threads=128, registers=32, smem_bytes=0)
    with pytest.raises(ValueError, match=r"blocks = -1, allowed: an integer >= 0"):
        waves(-1, one, gpu("a10"))
    assert waves(0, one, gpu("a10")) == 0.0

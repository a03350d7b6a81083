import math

import pytest

from labkernels import hardware
from labkernels.budget import StepWork, tile_time
from labkernels.budget.tile_model import LATENCY_CLOCKS, busiest_sm_steps, step_clocks
from labkernels.kernels.registry import discover

H200 = hardware.gpu("h200")


def work_of(**changes):
    square = {"flops": 4 * 128 * 128 * 64, "instruction": "wgmma", "exps": 128 * 128}
    return StepWork(**{**square, "smem_bytes": 0, "lane_ops": 0, "streams": 1} | changes)


def test_products_and_exponentials_on_hopper():
    for head_dim, ratio in ((64, 1), (128, 2), (256, 4)):
        clocks = step_clocks(work_of(flops=4 * 128 * 128 * head_dim), H200)
        assert clocks["mma"] == ratio * clocks["exp"]


def test_one_stream_hides_nothing_and_many_hide_all():
    alone = tile_time(work_of(), [1], H200, blocks_per_sm=1)
    assert alone.step == alone.mma + alone.exp + LATENCY_CLOCKS
    crowd = tile_time(work_of(streams=math.inf), [1], H200, blocks_per_sm=1)
    assert crowd.step == max(alone.mma, alone.exp)
    assert tile_time(work_of(), [1], H200, blocks_per_sm=2).step < alone.step


def test_shared_memory_works_beside_tensor_cores_and_the_softmax_after_them():
    both = tile_time(work_of(smem_bytes=128 * 1024, lane_ops=128), [1], H200, blocks_per_sm=1)
    assert (both.mma, both.smem, both.exp, both.issue) == (1024, 1024, 1024, 1)
    assert both.step == 1024 + 1025 + LATENCY_CLOCKS
    assert both.bound == "exp"
    read = tile_time(work_of(smem_bytes=256 * 1024), [1], H200, blocks_per_sm=1)
    assert read.bound == "smem"


def test_mma_sync_is_slower_where_its_share_is_known():
    slow = step_clocks(work_of(instruction="mma.sync"), H200)["mma"]
    fast = step_clocks(work_of(), H200)["mma"]
    assert math.isclose(slow * H200.measured_mma_sync_share, fast)
    a100 = hardware.gpu("a100")
    pair = [step_clocks(work_of(instruction=name), a100) for name in ("mma.sync", "wgmma")]
    assert pair[0] == pair[1]


def test_the_busiest_sm_has_whole_waves_and_fills_gaps():
    assert busiest_sm_steps([10] * 132, 132) == 10
    assert busiest_sm_steps([10] * 133, 132) == 20
    assert busiest_sm_steps([10, 1, 1, 1], 2) == 10
    assert tile_time(work_of(), [10] * 133, H200, blocks_per_sm=1).busiest_sm_steps == 20


def test_what_is_wrong_is_said():
    with pytest.raises(ValueError, match=r"instruction = 'tcgen05', allowed: mma.sync, wgmma"):
        work_of(instruction="tcgen05")
    with pytest.raises(ValueError, match=r"steps is empty, allowed: at least one"):
        busiest_sm_steps([], 132)
    with pytest.raises(ValueError, match="blocks_per_sm"):
        tile_time(work_of(), [1], H200, blocks_per_sm=0)
    with pytest.raises(ValueError, match="clock_hz"):
        tile_time(work_of(), [1], H200, blocks_per_sm=1, clock_hz=math.nan)


@pytest.mark.parametrize(
    "spec", [discover()[name] for name in ("prefill_mma", "prefill_wgmma")], ids=lambda s: s.name
)
def test_every_option_of_a_tunable_kernel_asks_something(spec):
    for head_dim in spec.head_dims:
        assert len(set(spec.space(head_dim))) == len(list(spec.space(head_dim)))
        rows = 2**20
        for one in spec.instances(
            spec.shape(dtype="bf16", head_dim=head_dim, rows=rows, layout="ragged"),
            spec.policies[0],
        ):
            clocks = step_clocks(spec.step_work(one), H200)
            assert min(clocks.values()) > 0

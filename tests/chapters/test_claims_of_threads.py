import pytest

from labkernels import budget, hardware
from labkernels.chapters import tensor_cores_on_and_off


def test_issue_slots_of_the_case_on_an_a100():
    case, gpu = tensor_cores_on_and_off.CASE, hardware.gpu("a100")
    even = budget.issue_time(case, gpu, slots_per_fma=4.5)
    assert even == pytest.approx(0.88e-3, rel=0.01)
    assert even == pytest.approx(case.flops / 2 * 4.5 / (108 * 128 * 1.41e9))
    busiest = budget.issue_time(case, gpu, slots_per_fma=4.5, blocks=456)
    assert busiest / even == pytest.approx(5 * 108 / 456)
    with pytest.raises(ValueError, match=r"slots_per_fma = 0, allowed: a number > 0"):
        budget.issue_time(case, gpu, slots_per_fma=0)


def test_the_criterion_does_not_give_the_threads_gain():
    small, large = tensor_cores_on_and_off.on_the_threads_gpu(4.5)
    assert small["gain, even"] == large["gain, even"] == 1.0
    assert 1.0 < large["gain, busiest"] < 1.15 < 1.25 == large["gain, reported"]
    # No copy reaches 95 % of the 40 GB part's peak, so the thread's A100 had 80 GB.
    assert small["on, % of the peak"] > 95
    assert large["on, % of the peak"] < 75


def test_the_waves_are_those_of_the_profiler():
    of = tensor_cores_on_and_off
    sms = hardware.gpu("a100").sm_count
    waves = {way: of.BLOCKS / (held * sms) for way, held in of.BLOCKS_PER_SM.items()}
    assert (round(waves["on"], 2), round(waves["off"], 2)) == (2.11, 0.60)
    assert of.last_wave() == pytest.approx(
        {"on": 100 * 2.111 / 3, "off": 100 * 4.222 / 5}, rel=1e-3
    )

"""Before it measures, the tuner rejects tiles with a reason, and ranks the rest."""

from contextlib import nullcontext
from dataclasses import replace

import pytest

from labkernels import cli, hardware
from labkernels.cuda.compiler import nvrtc
from labkernels.experiments import workers
from labkernels.experiments.workers import InTurn
from labkernels.kernels.cuda_kernel import TunableKernel
from labkernels.kernels.packed_gqa.tile import PrefillTile
from labkernels.kernels.prefill.workload import Prefill
from labkernels.kernels.registry import discover
from labkernels.measure.tuning import search

H200 = hardware.gpu("h200")
WORKLOAD = Prefill((4096,) * 4, (4096,) * 4, 16, 16, 128)


def variant(*numbers, head_dim=128):
    tile = PrefillTile(*numbers, "descending")
    spec = discover()["prefill_mma"].with_tile(tile)
    return spec.instance(spec.shape(dtype="bf16", head_dim=head_dim, group=1, layout="ragged"))


@pytest.mark.parametrize(
    ("numbers", "cause", "words"),
    [
        (
            (128, 128, 4, 2, 2),
            "'K and V stages' of shared memory",
            "160.0 KiB) per block, 2 per SM",
        ),
        ((256, 128, 4, 1, 1), "'O accumulator' of registers", "allowed: 255; over it with"),
        ((64, 64, 4, 1, 1), "another tile's code", "64x64x4x1x2-backward: 255 registers"),
    ],
)
def test_the_ledger_says_which_line_broke(numbers, cause, words):
    kept, (rejected,) = search.by_ledger([variant(*numbers)], H200)
    assert kept == []
    assert (rejected.by, rejected.cause) == (search.LEDGER, cause)
    assert words in rejected.reason


def test_tiles_of_the_kernels_own_list_fit_and_are_in_its_space():
    for spec in discover().values():
        if not isinstance(spec, TunableKernel):
            continue
        for head_dim in spec.head_dims:
            shape = Prefill((4096,), (4096,), 1, 1, head_dim)
            kept, rejected = search.by_ledger(search.space(spec, shape), H200)
            assert kept
            assert rejected
            default = spec.tiles(spec.shape(head_dim=head_dim), spec.policies[0])[0]
            assert default in set(spec.space(head_dim)), spec.name


def candidate(*numbers, blocks):
    instance = variant(*numbers)
    return search.Candidate(instance, 200, 100_000, blocks)


def test_the_model_prefers_wide_tiles_and_many_blocks():
    wide = candidate(128, 64, 4, 1, 2, blocks=2)
    narrow = candidate(64, 64, 4, 1, 2, blocks=2)
    alone = candidate(64, 128, 4, 2, 1, blocks=1)
    order = [item.candidate for item in search.ranked([alone, narrow, wide], WORKLOAD, H200)]
    assert order == [wide, narrow, alone]
    assert search.expected_time(narrow, WORKLOAD, H200).bound == "smem"
    full, causal = (
        search.expected_time(wide, replace(WORKLOAD, causal=causal), H200).time_s
        for causal in (False, True)
    )
    assert 0.5 < causal / full < 0.56


@pytest.mark.skipif(nvrtc.available() is not None, reason="needs NVRTC")
def test_the_report_names_every_stage(monkeypatch, capsys):
    spec = discover()["prefill_mma"]
    tiles = (variant(*n).tile for n in ((64, 64, 4, 1, 2), (64, 64, 4, 1, 3), (256, 128, 4, 1, 1)))
    small = spec.changed(space=lambda head_dim, tiles=tuple(tiles): tiles)
    monkeypatch.setattr(search, "tunable", lambda name: small)
    monkeypatch.setattr(workers, "executor", lambda *how, **more: nullcontext(InTurn()))
    assert cli.main(["tune", "prefill_mma", "--no-gpu"]) == 0
    text = capsys.readouterr().out
    assert "3 tiles in its space" in text
    assert "1 rejected by the ledger\n    1 'O accumulator' of registers" in text
    assert "1 of 2 rejected by the compiler\n    1 spilled registers" in text
    assert "64x64x4x1x2-backward" in text
    assert "smem" in text

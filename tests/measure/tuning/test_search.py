"""Before it measures, the tuner rejects tiles with a reason, and ranks the rest."""

from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import pytest

from labkernels import cli, hardware
from labkernels.cuda.compiler import nvrtc
from labkernels.cuda.gpu import device
from labkernels.experiments import workers
from labkernels.experiments.workers import InTurn
from labkernels.kernels.decode.kernel import DecodeTile
from labkernels.kernels.decode.workload import Decode
from labkernels.kernels.packed_gqa.tile import PrefillTile
from labkernels.kernels.prefill.workload import Prefill
from labkernels.kernels.random_inputs import Normal
from labkernels.kernels.registry import discover
from labkernels.measure import resources, timing
from labkernels.measure.timing import Quartiles
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
    assert rejected.cause == cause
    assert words in rejected.reason


def test_tiles_of_the_kernels_own_list_fit_and_are_in_its_space():
    for spec in resources.cuda_kernels().values():
        for head_dim in spec.head_dims if any(spec.space(128)) else ():
            works = [Prefill((4096,), (4096,), 1, 1, head_dim)]
            if spec.operation == "decode":
                how = {"q_heads": 8, "kv_heads": 1, "head_dim": head_dim}
                works = [Decode.uniform(4, 4096, **how, kv_dtype=kind) for kind in spec.kv_dtypes]
            for work in works:
                kept, rejected = search.by_ledger(search.space(spec, work), H200)
                assert {one.kv_dtype for one in kept} == {getattr(work, "kv_dtype", None)}
                assert rejected
                default = spec.tiles(resources.shape_of(spec, work), spec.policies[0])[0]
                assert default in {one.tile for one in kept}, spec.name


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


def test_without_a_model_own_tiles_come_first_and_then_those_that_fill_an_sm():
    spec, work = discover()["decode_mma"], Decode.uniform(4, 4096, q_heads=8, kv_heads=1)
    named = {one.tile.label: one for one in search.space(spec, work)}
    found = [
        search.Candidate(named[label], 168, smem, blocks)
        for label, smem, blocks in (
            ("2x32x2x1", 30_000, 1),
            ("4x16x2x3", 50_000, 3),
            ("2x32x3x4", 50_000, 4),
        )
    ]
    order = search.ranked(found, work, H200)
    labels = [item.candidate.instance.tile.label for item in order]
    assert labels == ["4x16x2x3", "2x32x3x4", "2x32x2x1"]
    assert {item.time for item in order} == {None}
    assert search.ranked([], work, H200) == []


@pytest.fixture
def tune(monkeypatch, capsys):
    """Return the report of a search of some tiles of a kernel, in this process."""

    def report(kernel, tiles, *options):
        small = discover()[kernel].changed(space=lambda head_dim: iter(tiles))
        monkeypatch.setattr(search, "tunable", lambda name: small)
        monkeypatch.setattr(workers, "executor", lambda *how, **more: nullcontext(InTurn()))
        assert cli.main(["tune", kernel, *options]) == 0
        return capsys.readouterr().out

    return report


@pytest.mark.skipif(nvrtc.available() is not None, reason="needs NVRTC")
def test_the_report_names_every_stage(tune):
    tiles = [variant(*n).tile for n in ((64, 64, 4, 1, 2), (64, 64, 4, 1, 3), (256, 128, 4, 1, 1))]
    text = tune("prefill_mma", tiles, "--no-gpu")
    assert "3 tiles in its space" in text
    assert "1 rejected by the ledger\n    1 'O accumulator' of registers" in text
    assert "1 of 2 rejected by the compiler\n    1 spilled registers" in text
    assert "64x64x4x1x2-backward" in text
    assert "smem" in text
    assert "planned for each tile" not in text


@pytest.mark.skipif(nvrtc.available() is not None, reason="needs NVRTC")
@pytest.mark.parametrize("kind", ["e4m3", "e5m2"])
def test_a_decode_of_8_bits_is_listed_with_both_formulas_and_planned_for_each_tile(tune, kind):
    tiles = [DecodeTile(4, 16, 3, 3), DecodeTile(2, 16, 2, 4), DecodeTile(8, 16, 2, 3)]
    text = tune("decode_mma", tiles, "--no-gpu", "--kv-dtype", kind)
    assert f"57 x 8192, 32/8, d128, page 16, bf16, {kind} cache" in text
    assert "1 rejected by the ledger" in text
    rows = {line.split()[0]: line.split()[1:] for line in text.splitlines() if "(" in line}
    registers, formula, smem, by_ledger, blocks, splits = rows["4x16x3x3"]
    assert int(registers) <= 168
    assert (formula, smem, by_ledger, blocks, splits) == ("(168)", "44.0", "(44.0)", "3", "6")
    assert rows["2x16x2x4"][-1] == "1"
    assert "* is not in the kernel's own list" in text
    assert "are planned for each tile" in text


@pytest.mark.skipif(nvrtc.available() is not None, reason="needs NVRTC")
def test_tiles_of_a_decode_are_timed_and_their_outputs_judged(tune, monkeypatch):
    """The CPU build stands for the GPU, and made-up times for the timer's."""

    def timed(runs, *, repeats, warmup):
        times = [1e-6 * run.instance.tile.stages for run in runs]
        return {run: Quartiles(t, t, t, repeats) for run, t in zip(runs, times, strict=True)}

    monkeypatch.setattr(device, "available", lambda index=0: None)
    monkeypatch.setattr(device, "planning_gpu", lambda index=0: H200)
    monkeypatch.setattr(workers, "alone", lambda work, *given, **named: work(*given, **named))
    monkeypatch.setattr(search, "Normal", partial(Normal, device="cpu"))
    monkeypatch.setattr(timing, "time_interleaved", timed)
    tiles = [DecodeTile(4, 16, 3, 3), DecodeTile(4, 16, 2, 3)]
    shape = ("--batch=2", "--kv-len=300", "--heads=4/2", "--head-dim=64", "--kv-dtype=e4m3")
    text = tune("decode_mma", tiles, *shape)
    assert text.count("passed") == 2
    assert "2 tiles are timed" in text
    assert text.endswith(
        "best for 2 x 300, 4/2, d64, page 16, bf16, e4m3 cache: 4x16x2x3, 2.000 us\n"
    )

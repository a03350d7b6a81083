"""`labkernels budget` takes the head_dims of a kernel, says how near a spill is, and its source."""

import re

import pytest

from labkernels.cuda.compiler import nvrtc
from labkernels.measure import resources
from tests.cli.test_cli import call


def test_budget_takes_the_head_dim_that_a_kernel_offers(capsys):
    code, out, _ = call(capsys, "budget", "mla_mma", "--heads", "16/1")
    assert code == 0
    assert "head_dim 576" in out
    code, _, error = call(capsys, "budget", "mla_mma", "--head-dim", "128")
    assert code == 2
    assert "head_dim = 128, allowed for mla_mma: 576" in error


@pytest.mark.parametrize(
    ("kernel", "words"),
    [
        ("mla_wgmma", "168 predicted, the limit, 224 after setmaxnreg"),
        ("decode_mma", "168 predicted, the limit (at the edge: ptxas would take 177)"),
        ("backward_mma", "255 predicted, the limit (a few may spill: ptxas would take 323)"),
    ],
)
def test_budget_says_how_near_a_spill_is(capsys, kernel, words):
    assert words in call(capsys, "budget", kernel)[1]


def test_budget_without_a_compiler_says_where_its_numbers_come_from(capsys, monkeypatch):
    monkeypatch.setattr(nvrtc, "available", lambda: "no cuda.bindings")
    code, out, _ = call(capsys, "budget", "decode_mma")
    assert code == 0
    assert re.search(
        r" \d+ by ptxas, \d+ B spilled \(recorded from NVRTC .*no compiler here\)", out
    )
    monkeypatch.setattr(resources, "recorded", lambda instance, arch: None)
    code, out, _ = call(capsys, "budget", "decode_mma")
    assert code == 0
    assert "no compiler here and no recorded report: occupancy is of the prediction" in out

"""`labkernels explain` says which requests two batches cut otherwise."""

import pytest

from labkernels import cli
from labkernels.cli.probe import explain
from labkernels.hardware import gpu
from labkernels.planners import Batch, NotKnown
from labkernels.planners.named import PLANNERS, planner
from labkernels.probing.our_cuts import NAME


def explained(capsys, *asked):
    code = cli.main(["explain", *asked])
    said = capsys.readouterr()
    return code, said.out + said.err


def test_a_batch_that_fills_the_gpu_has_no_splits(capsys):
    code, said = explained(capsys, "flashinfer:fa2", "1x8192", "57x8192")
    assert code == 1
    words = "with 57 requests its 8,192 keys are not split, alone cut into 32 splits of 256"
    assert f"request 0 changes because {words}; of 32 heads with random inputs 32 change" in said


def test_our_own_plans_have_a_name_too(capsys):
    asked = ("labkernels", "1x8192", "57x8192", "--with", "kernel=decode_mma")
    code, said = explained(capsys, *asked)
    assert code == 1
    assert "alone cut into 32 splits of 256" in said
    code, said = explained(capsys, *asked, "--with", "batch_invariant=true")
    assert code == 0
    assert "16 x 64, 16 splits of 512 in both batches: equal bits" in said
    code, said = explained(capsys, "labkernels", "600", "600,600", "--queries", "9", "--causal")
    assert "128 x 128" in said
    code, said = explained(capsys, "labkernels", "8", "9", "--heads", "16/1", "--head-dim", "576")
    assert (code, "our cuts of an MLA decode" in said) == (2, True)


def test_a_switch_of_the_library_is_passed_on(capsys):
    asked = ("flashinfer:fa2", "1x8192", "57x8192", "--with", "fixed_split_size=64")
    code, said = explained(capsys, *asked)
    assert code == 0
    assert "8 splits of 1024 in both batches: equal bits" in said


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (("torch:cudnn", "1x8", "2x8"), "source is closed"),
        (("flashinfer:fa2", "1x8", "2x8", "--with", "splits=1"), "unexpected keyword"),
        (("flashinfer:fa2", "many", "2x8"), "first = 'many', allowed: 57x8192"),
        (("flashinfer:fa2", __file__, "2x8"), "'2x8' is no file, allowed: two files"),
        (("flashinfer", "1x8", "2x8"), "planner = 'flashinfer', allowed: "),
    ],
)
def test_what_is_not_known_is_a_line(capsys, asked, words):
    code, said = explained(capsys, *asked)
    assert code == 2
    assert words in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("name", PLANNERS)
def test_every_name_answers_or_says_why_not(name):
    batch = Batch((512,) * 3, 16, 1 if "mla" in name else 4, 576 if "mla" in name else 128)
    if name in ("torch:cudnn", "torch:math", "torch:sdpa"):  # cuDNN comes first here
        with pytest.raises(NotKnown):
            planner(name)(batch, gpu("h200"))
        return
    assert all(splits[-1][1] == 512 for splits in planner(name)(batch, gpu("h200")).splits)


def test_the_help_lists_every_name():
    listed = explain.DESCRIPTION.partition("libraries:")[2].partition("examples:")[0]
    assert [name.strip() for name in listed.split(",")] == [*PLANNERS, NAME]


def test_a_switch_has_one_value(capsys):
    code, said = explained(capsys, "flash_attn_2", "1x8", "2x8", "--with", "num_splits=1,2")
    assert code == 2
    assert "--with num_splits has 2 values, allowed: 1" in said

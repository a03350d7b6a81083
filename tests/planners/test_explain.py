"""`labkernels explain` says which requests two batches cut otherwise."""

import pytest

from labkernels import cli
from labkernels.cli.probe import explain
from labkernels.hardware import gpu
from labkernels.planners import Batch, NotKnown
from labkernels.planners.named import PLANNERS, planner


def explained(capsys, *asked):
    code = cli.main(["explain", *asked])
    said = capsys.readouterr()
    return code, said.out + said.err


def test_a_batch_that_fills_the_gpu_has_no_splits(capsys):
    code, said = explained(capsys, "flashinfer:fa2", "1x8192", "57x8192")
    assert code == 1
    assert "32 splits of 256 in the batch of 1" in said
    assert "no split in the batch of 57: of 32 heads with random inputs 32 change bits" in said


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
    if name in ("torch:cudnn", "torch:math"):
        with pytest.raises(NotKnown):
            planner(name)(batch, gpu("h200"))
        return
    assert all(splits[-1][1] == 512 for splits in planner(name)(batch, gpu("h200")).splits)


def test_the_help_lists_every_name():
    listed = explain.DESCRIPTION.partition("libraries:")[2].partition("examples:")[0]
    assert [name.strip() for name in listed.split(",")] == list(PLANNERS)


def test_a_switch_has_one_value(capsys):
    code, said = explained(capsys, "flash_attn_2", "1x8", "2x8", "--with", "num_splits=1,2")
    assert code == 2
    assert "--with num_splits has 2 values, allowed: 1" in said

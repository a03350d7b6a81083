"""What a verdict says of a bug is graded from data, and a drawn mistake is what it says."""

import math
from types import SimpleNamespace

import pytest
import torch

from labkernels import defects
from labkernels.experiments.accuracy import strangers
from labkernels.measure.strangers import drawn, runs, wrong
from labkernels.records import schema
from tests.measure.strangers import inputs
from tests.measure.strangers.the_set import SET

SHAPE = (2, 4, 10)  # requests, heads, queries


def _region(requests=None, heads=None, rows=None, keys=None):
    return SimpleNamespace(requests=requests, heads=heads, rows=rows, keys=keys, words="somewhere")


def _found(*kinds, region=None, answer="BUG"):
    matches = [
        SimpleNamespace(kind=kind, edit="V times 2", before=9.0, after=0.5) for kind in kinds
    ]
    return SimpleNamespace(answer=answer, why="", matches=tuple(matches), region=region)


def _struck(requests=slice(None), heads=slice(None), rows=slice(None)):
    where = torch.zeros(SHAPE, dtype=torch.bool)
    where[requests, heads, rows] = True
    return where


def _graded(found, classes=(defects.VALUES,), struck=None, keys=None):
    struck = _struck() if struck is None else struck
    return runs.graded(found, classes, struck[..., None], struck, keys)


def test_one_class_of_the_matches_is_right():
    for kinds, grade in (
        ((defects.VALUES,), runs.RIGHT_CLASS),
        ((defects.STORE, defects.VALUES), runs.RIGHT_CLASS),
        ((defects.STORE,), runs.WRONG_CLASS),
        ((), runs.NO_CLASS),
    ):
        assert _graded(_found(*kinds)).graded == grade
    assert _graded(_found(answer="ROUNDING")) == runs.Said()


def test_bugs_have_classes_of_the_one_vocabulary():
    assert {kind for _, kinds in SET.wrong.values() for kind in kinds} <= {*defects.CLASSES}


@pytest.mark.parametrize(
    ("region", "placed"),
    [
        (_region(heads=(2, 3), rows=(5, 9)), True),
        (_region(requests=(0, 1), heads=(2, 3), rows=(5, 9)), True),
        (_region(heads=(2, 3)), False),
        (_region(heads=(1, 2, 3), rows=(5, 9)), False),
        (_region(requests=(1,), heads=(2, 3), rows=(5, 9)), False),
        (None, None),
    ],
)
def test_a_place_is_right_if_it_has_the_wrong_rows_and_no_others(region, placed):
    struck = _struck(heads=slice(2, None), rows=slice(5, None))
    assert _graded(_found(defects.VALUES, region=region), struck=struck).placed == placed


def test_keys_count_where_both_know_them_and_a_place_may_be_where_a_bug_shows():
    for keys, placed in (((0, 1), True), ((1, 2), False), (None, True)):
        found = _found(defects.VALUES, region=_region(keys=keys))
        assert _graded(found, keys=(0, 1)).placed == placed
        assert _graded(found).placed
    struck, changed = _struck(), _struck(rows=slice(7, None))
    found = _found(defects.VALUES, region=_region(rows=(7, 9)))
    assert runs.graded(found, (defects.VALUES,), changed[..., None], struck).placed


def test_a_bug_that_changes_no_bit_is_no_run(monkeypatch):
    monkeypatch.setattr(runs, "judged", lambda call, out: _found(defects.SCORES, region=_region()))
    cases = [("v zero", "bf16", 20_000, "all"), ("normal", "bf16", 20_000, "late queries")]
    (run,) = runs.of_wrong("slope of", cases, SET)
    assert (run.family, run.part, run.set) == ("normal", "late queries", SET.name)
    assert (run.said.graded, run.said.placed) == (runs.RIGHT_CLASS, False)


def test_a_row_of_a_recording_has_what_was_said():
    said = runs.Said(runs.WRONG_CLASS, ("mask", "mask"), "all rows", "", 3.0, math.nan, True)
    run = runs.Run("normal", "a bug", "fp16", 1, "held out", "BUG", "", 1.0, said=said)
    row = strangers.row_of(strangers.WRONG, run)
    whole = {"started_utc": "2026-01-31T00:00:00Z", "commit": "c", "seed": 0, **row}
    checked = schema.validate(whole, schema.TABLES["strangers"])
    assert (checked["bug"], checked["named_wrong"], checked["not_named"]) == (1, 1, 0)
    assert (checked["classes"], checked["before"], checked["after"]) == ("mask", 3.0, "")
    assert checked["placed"] is True


def test_a_bug_of_a_part_leaves_the_other_rows():
    call = SET.call("normal", "fp16", 3)
    for part in wrong.PARTS:
        out = wrong.run(wrong.stored(lambda w, out: out / 2), call, part)
        changed = (out != wrong.run(wrong.right_output, call)).any(-1)
        assert changed.equal(wrong.rows_of(call, part))


OF_DRAWN = inputs.Shape(2, 4, 2, 12, 150, 32, causal=True)


@pytest.fixture(scope="module")
def work():
    return wrong.Work.of(inputs.call("peaky", OF_DRAWN, "fp16", 3))


@pytest.mark.parametrize("number", range(len(drawn.EDITS)), ids=drawn.EDITS)
def test_an_edit_changes_the_rows_that_it_says_and_no_others(number, work):
    good, shown = wrong.right_output(work), 0
    for seed in range(number, number + 8 * len(drawn.EDITS), len(drawn.EDITS)):
        mistake = drawn.mistake(seed)
        assert (mistake.edit, mistake.seed) == (list(drawn.EDITS)[number], seed)
        assert mistake.kind in defects.CLASSES
        out = mistake.output(work)
        assert (out.shape, out.dtype) == (good.shape, good.dtype)
        assert out.isfinite().all()
        changed = (out != good).any(-1)
        heads, rows = changed.any(2).any(0), changed.any(1).any(0)
        if mistake.rows == "odd heads":
            assert not heads[::2].any()
        if mistake.rows == "late queries":
            assert not rows[: len(rows) // 2].any()
        shown += bool(changed.any())
    assert shown >= 4


def test_keys_are_those_of_the_words():
    mistake = drawn.Mistake("keys left out", 0.0, "odd tiles", "all rows", 0.5, 16, 0)
    assert mistake.keys_of(40).nonzero().flatten().tolist() == list(range(16, 32))
    assert mistake.words == "keys left out, odd tiles, tiles of 16, all rows"

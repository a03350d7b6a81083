"""A drawn mistake changes what its words say, and no other rows."""

import pytest

from labkernels import defects
from labkernels.measure.mistakes import drawn
from labkernels.measure.mistakes.attention import Work, right_output
from tests.measure.strangers import inputs

OF_DRAWN = inputs.Shape(2, 4, 2, 12, 150, 32, causal=True)


@pytest.fixture(scope="module")
def work():
    return Work.of(inputs.call("peaky", OF_DRAWN, "fp16", 3))


@pytest.mark.parametrize("number", range(len(drawn.EDITS)), ids=drawn.EDITS)
def test_an_edit_changes_the_rows_that_it_says_and_no_others(number, work):
    good, shown = right_output(work), 0
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

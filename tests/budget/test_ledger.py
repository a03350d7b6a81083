import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkernels.budget import Ledger, Line, number

UNIONS = st.lists(st.tuples(st.integers(0, 10**6), st.sampled_from([None, "a", "b"])), max_size=8)


def ledger(*lines):
    return Ledger("a test", "bytes", lines)


def total(entries, grown=None, by=0):
    """Return the total of amounts and their unions, of which one may have grown."""
    lines = ((n + by * (i == grown), union) for i, (n, union) in enumerate(entries))
    return ledger(*(Line(f"line {i}", n, shares=u) for i, (n, u) in enumerate(lines))).total


@given(UNIONS, st.integers(0, 7), st.integers(0, 10**6))
def test_total_is_the_sum_of_lines_and_of_the_largest_of_each_union(entries, which, more):
    alone = sum(n for n, union in entries if union is None)
    largest = sum(max((n for n, u in entries if u == union), default=0) for union in ("a", "b"))
    assert total(entries) == alone + largest
    assert alone + largest <= total(entries, which, more) <= alone + largest + more


def test_lines_of_a_phase_add_up_before_phases_compete():
    loop = [Line(name, 100, shares="tiles", phase="loop") for name in ("K", "V")]
    merge = Line("merge", 150, shares="tiles", phase="merge")
    assert ledger(*loop, merge).total == 200
    assert ledger(*loop, Line("merge", 250, shares="tiles")).total == 250
    assert ledger(Line("loop", 5, shares="u"), Line("K", 7, shares="u", phase="loop")).total == 7


def test_table_shows_every_line_and_the_total():
    text = ledger(
        Line("K stages", number(2) * 128 * 128 * number(2, "B")),
        Line("page offsets", number(128) * number(8, "B"), note="in the loop", shares="tail"),
        Line("merge", 64, shares="tail"),
    ).table()
    rows = text.splitlines()
    assert rows[0] == "a test"
    assert "65,536 B (64.0 KiB)  2 x 128 x 128 x 2 B" in text
    assert "shares tail; in the loop" in text
    assert rows[-1].split(None, 1) == ["total", "66,560 B (65.0 KiB)"]
    assert all(row == row.rstrip() for row in rows)


def test_bad_lines_are_refused():
    with pytest.raises(ValueError, match=r"value = 1\.5, allowed: an integer >= 0"):
        Line("half", 1.5)
    with pytest.raises(ValueError, match=r"phase = 'loop', allowed: None if shares is None"):
        Line("K", 1, phase="loop")
    with pytest.raises(ValueError, match=r"lines = \['K'\] repeated, allowed: each name once"):
        ledger(Line("K", 1), Line("K", 2))
    with pytest.raises(ValueError, match=r"unit = 'KiB', allowed: bytes, registers"):
        Ledger("a test", "KiB", ())

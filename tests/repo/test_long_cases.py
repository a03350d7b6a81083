"""Of a large table of cases a part runs, and `-m long` runs all others."""

from types import SimpleNamespace

import pytest

from tests.conftest import leave_cases_for_long_runs


class Item:
    def __init__(self, test, one_in=None):
        self.path, self.originalname, self.marks = "file", test, []
        self.one_in = one_in and SimpleNamespace(args=(one_in,))

    def get_closest_marker(self, name):
        return self.one_in if name == "one_in" else None

    def add_marker(self, mark):
        self.marks.append(mark.name)


@pytest.mark.parametrize("one_in", [2, 3])
def test_each_table_is_counted_alone_and_its_first_case_runs(one_in):
    tables = [[Item(name, one_in) for _ in range(7)] for name in ("a", "b")]
    whole = [Item("c") for _ in range(3)]
    leave_cases_for_long_runs([*tables[0], *whole, *tables[1]])
    for items in tables:
        runs = [i for i, item in enumerate(items) if not item.marks]
        assert runs == list(range(0, 7, one_in))
    assert not any(item.marks for item in whole)

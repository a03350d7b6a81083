"""Of a large table of cases a part runs in `make test`; `make test-all` runs all others."""

from types import SimpleNamespace

import pytest

from tests.conftest import leave_cases_for_long_runs


class Item:
    def __init__(self, test, one_in=None, kernel=None):
        self.path, self.originalname, self.marks = "file", test, []
        self.one_in = one_in and SimpleNamespace(args=(one_in,))
        self.few = kernel and SimpleNamespace(args=("kernel", 3))
        self.callspec = SimpleNamespace(params={"kernel": kernel})

    def get_closest_marker(self, name):
        return {"one_in": self.one_in, "few_of_each": self.few}.get(name)

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


def test_each_kernel_has_its_first_its_last_and_a_middle_case():
    sizes = {"a": 9, "b": 1, "c": 2, "d": 5}
    items = {kernel: [Item("test", kernel=kernel) for _ in range(n)] for kernel, n in sizes.items()}
    leave_cases_for_long_runs([item for cases in items.values() for item in cases])
    runs = {kernel: [i for i, x in enumerate(xs) if not x.marks] for kernel, xs in items.items()}
    assert runs == {"a": [0, 4, 8], "b": [0], "c": [0, 1], "d": [0, 2, 4]}

"""Of a large table of cases a part runs in `make test`; `make test-all` runs all others."""

from types import SimpleNamespace

from tests.conftest import leave_cases_for_long_runs


class Item:
    def __init__(self, test, **asked):
        self.path, self.originalname, self.marks = "file", test, []
        self.asked = {name: SimpleNamespace(args=args) for name, args in asked.items()}
        self.callspec = SimpleNamespace(params={"kernel": test})
        self.get_closest_marker = self.asked.get

    def add_marker(self, mark):
        self.marks.append(mark.name)


def test_each_table_is_counted_alone_and_its_first_case_runs():
    sizes = {"a": 9, "b": 1, "c": 2, "d": 5}
    for asked, left in (
        ({"one_in": (3,)}, {"a": [0, 3, 6], "b": [0], "c": [0], "d": [0, 3]}),
        ({"few_of_each": ("kernel", 3)}, {"a": [0, 4, 8], "b": [0], "c": [0, 1], "d": [0, 2, 4]}),
        ({}, {name: list(range(n)) for name, n in sizes.items()}),
    ):
        tables = {name: [Item(name, **asked) for _ in range(n)] for name, n in sizes.items()}
        leave_cases_for_long_runs([item for items in tables.values() for item in items])
        runs = {name: [i for i, x in enumerate(xs) if not x.marks] for name, xs in tables.items()}
        assert runs == left

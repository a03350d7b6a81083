"""The examples in docstrings hold, and every function of the API reference has an example."""

import doctest
import functools
import importlib
import inspect
import re

import pytest

import labkernels
from labkernels import budget, ops
from tests.repo.files import ROOT

PAGE = (ROOT / "book/api.md").read_text()
SOURCES = sorted((ROOT / "labkernels").rglob("*.py"))
WITH_EXAMPLES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for path in SOURCES
    if ">>> " in path.read_text()
]


def offered() -> dict[str, object]:
    """Return the functions that the API reference shows or packages export, by name."""
    names = re.findall(r"autofunction:: (\S+)", PAGE)
    found = {name: resolve(name) for name in names}
    for package in (labkernels, ops, budget):
        for name in package.__all__:
            found.setdefault(f"{package.__name__}.{name}", getattr(package, name))
    return {name: thing for name, thing in found.items() if inspect.isfunction(thing)}


def resolve(name: str) -> object:
    """Return the object of a dotted name."""
    module, _, last = name.rpartition(".")
    return getattr(importlib.import_module(module), last)


@functools.cache
def has_example(thing) -> bool:
    return bool(doctest.DocTestParser().get_examples(inspect.getdoc(thing) or ""))


def test_every_function_of_the_reference_has_an_example():
    found = offered()
    assert len(found) > 40
    assert [name for name, thing in found.items() if not has_example(thing)] == []


def test_the_reference_shows_every_exported_function_and_class():
    shown = {resolve(name) for name in re.findall(r"auto(?:function|class):: ([\w.]+)", PAGE)}
    shown |= {getattr(budget, name) for name in budget.__all__}
    exported = {getattr(p, n) for p in (labkernels, ops) for n in p.__all__ if n != "torch_ops"}
    missing = [thing for thing in exported - shown if callable(thing)]
    assert missing == []


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_examples_hold(name):
    found = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert found.attempted
    assert not found.failed

"""The build of the book compares the bits of each kernel in a page with those of the GPU."""

import node
import page_widgets
import pytest

from labkernels.widgets import kernels


@pytest.fixture
def results(monkeypatch):
    """Return what node is said to have computed; a test may change this."""
    computed = {o.name: {"error": None, "sum": o.checksum} for o in kernels.offers()}
    monkeypatch.setattr(node, "is_available", lambda: True)
    monkeypatch.setattr(node, "run_recorded", lambda assets: computed)
    return computed


def test_recorded_bits_are_told(results):
    told = page_widgets.check(kernels.offers(), {})
    assert told == f"kernels in pages: {len(results)}, each with the recorded bits"


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"sum": "0" * 64}, r"SHA-256 0{64}, recorded \w+"),
        ({"sum": None, "error": "read beyond the page"}, "read beyond the page"),
    ],
)
def test_other_bits_and_a_kernel_that_fails_stop_the_build(results, wrong, words):
    name = next(iter(results))
    results[name] |= wrong
    with pytest.raises(page_widgets.BitsDiffer, match=rf"^{name} in a page: {words}$"):
        page_widgets.check(kernels.offers(), {})


def test_without_node_the_build_says_that_nothing_ran(monkeypatch):
    monkeypatch.setattr(node, "is_available", lambda: False)
    assert page_widgets.check((), {}) == "kernels in pages: not run, since node is not installed"

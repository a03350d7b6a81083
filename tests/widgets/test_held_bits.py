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


def test_other_bits_stop_the_build(results):
    name = next(iter(results))
    results[name]["sum"] = "0" * 64
    with pytest.raises(
        page_widgets.BitsDiffer, match=rf"^{name} in a page: SHA-256 0{{64}}, recorded \w+$"
    ):
        page_widgets.check(kernels.offers(), {})


def test_a_kernel_that_fails_stops_the_build_with_its_words(results):
    name = next(iter(results))
    results[name].update(error="read beyond the page", sum=None)
    with pytest.raises(page_widgets.BitsDiffer, match=rf"^{name} in a page: read beyond the page$"):
        page_widgets.check(kernels.offers(), {})


def test_without_node_the_build_says_that_nothing_ran(monkeypatch):
    monkeypatch.setattr(node, "is_available", lambda: False)
    assert page_widgets.check((), {}) == "kernels in pages: not run, since node is not installed"

"""A kernel in a page computes what an H200 computed, and the page judges it as Python does."""

import json

import node
import numpy as np
import page_widgets
import pytest

from labkernels.kernels.operation import operations
from labkernels.kernels.random_inputs import ExactNormal
from labkernels.numerics.error.bounds import out_bound
from labkernels.numerics.truth.oracle import attention
from labkernels.widgets import kernels


def test_every_offer_has_a_recorded_checksum():
    sums = [offer.checksum for offer in kernels.offers()]
    assert len(set(sums)) == len(sums) == len({offer.name for offer in kernels.offers()})


def test_page_computes_the_bits_of_the_gpu(needs_node, offer, assets):
    (result,) = node.run_recorded(assets).values()
    assert result["error"] is None
    assert result["sum"] == offer.checksum


def test_page_knows_truth_and_bound(needs_node, offer, assets):
    (result,) = node.run_recorded(assets).values()
    workload = offer.recorded.workload
    inputs = operations()["decode"].inputs(workload, ExactNormal(0))
    policy = offer.recorded.instance.policy.of(offer.recorded.instance.dtype)
    bound = out_bound(inputs.problem(), policy)
    step = operations()["decode"].step(inputs, **offer.recorded.asked)
    step.run()
    error = np.abs(step.out.double().numpy() - attention(inputs.problem())[0])
    for axis, groups in ((0, result["requests"]), (1, result["heads"])):
        over = tuple(i for i in range(3) if i != axis)
        np.testing.assert_allclose([g["bound"] for g in groups], bound.max(over), rtol=1e-9)
        np.testing.assert_allclose([g["error"] for g in groups], error.max(over), rtol=1e-6)
        assert all(g["inside"] for g in groups)


def test_a_damaged_input_has_other_bits(needs_node, offer, assets, tmp_path):
    asset = json.loads(assets[offer.name])
    asset["cases"]["recorded"]["attention"]["kv_lens"][2] += 16  # takes another page
    (tmp_path / f"{offer.name}.json").write_text(json.dumps(asset))
    assert node.run(node.CHECK, tmp_path)[offer.name]["sum"] != offer.checksum


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

"""The numbers to guess on the first page are those of data/, and within their sliders."""

import pytest

from labkernels.records import store
from labkernels.widgets import guesses


def test_every_answer_lies_on_its_slider_and_names_its_source():
    for guess in guesses.guesses():
        assert 0 < guess.truth < guess.most
        assert guess.source.startswith("measured on NVIDIA")
        assert f'data-truth="{guess.truth}"' in guess.html()


def test_gain_is_the_ratio_of_two_recorded_medians():
    rows = store.select(store.read("prefill"), {"note": guesses._PREFILL, "metric": "time"})
    medians = {
        row["kernel"]: row["value"]
        for row in store.newest(rows)
        if row["statistic"] == "median" and row["kernel"] in ("prefill_fma", "prefill_wgmma")
    }
    prefill = guesses.guesses()[1]
    assert prefill.truth == medians["prefill_fma"] / medians["prefill_wgmma"]


def test_two_medians_of_a_kernel_are_refused():
    rows = store.select(store.read("prefill"), {"note": guesses._PREFILL, "metric": "time"})
    newest = store.newest(rows)
    with pytest.raises(ValueError, match="prefill_fma has 2 recorded medians, allowed: 1"):
        guesses._gain([*newest, *newest], ("prefill_fma", "prefill_wgmma"))

"""The numbers to guess on the first page are those of data/, and within their sliders."""

from pathlib import Path

import guesses
import pytest

from labkernels.records import store

NOTEBOOKS = Path(__file__).parents[3] / "notebooks"
CASES = (
    "tensor_cores_on_and_off",
    "two_roads",
    "the_test_that_could_not_fail",
    "a_typo_that_looked_like_rounding",
    "half_idle_tensor_cores",
)


@pytest.mark.parametrize("name", guesses.GUESSES)
def test_every_answer_lies_on_its_slider_and_names_its_source(name):
    guess = guesses.GUESSES[name]()
    assert 0 < guess.truth < guess.most
    assert guess.source.startswith(("measured on NVIDIA", "from the CPU build"))
    assert f'data-truth="{guess.truth}"' in guess.html()


@pytest.mark.parametrize("chapter", CASES)
def test_every_case_asks_for_a_guess_before_it_measures(chapter):
    before, place, after = (NOTEBOOKS / f"{chapter}.py").read_text().partition("<!-- guess: ")
    assert place
    name = after.split()[0]
    assert guesses.GUESSES[name]().chapter == chapter
    assert "## Prediction" in before


def test_a_page_has_its_questions_and_no_link_to_itself():
    text = guesses.placed("a\n<!-- guess: equal_heads -->\nb", "two_roads")
    assert text.startswith("a\n```{raw} html\n<div")
    assert text.endswith("```\nb")
    assert "Why?" not in text
    assert "Why?" in guesses.placed("<!-- guess: equal_heads -->", "intro")


def test_a_guess_that_nobody_knows_is_named():
    with pytest.raises(ValueError, match="guess = 'other', allowed: decode_gain"):
        guesses.placed("<!-- guess: other -->")


def test_two_medians_of_a_kernel_are_refused():
    rows = store.select(
        store.read("prefill"), {"note": guesses._PREFILL, "metric": "time", "page_size": 0}
    )
    newest = store.newest(rows)
    with pytest.raises(ValueError, match="prefill_fma has 2 recorded medians, allowed: 1"):
        guesses._gain([*newest, *newest], ("prefill_fma", "prefill_wgmma"))

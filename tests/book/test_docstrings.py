"""The API reference shows a docstring's parts, characters and examples as they are meant."""

from docstrings import plain


def test_a_part_holds_its_lines_and_ends_where_the_next_starts():
    lines = ["A sum.", "", "Shapes: x [n];", "y [n]", "scale, bias: numbers", "", "Then text."]
    assert plain(lines) == [
        "A sum.",
        "",
        ":Shapes: x [n];",
        "    y [n]",
        ":scale, bias: numbers",
        "",
        "Then text.",
    ]


def test_a_part_behind_a_paragraph_stands_apart():
    assert plain(["A sum.", "More text.", "Units: s"])[1:] == ["More text.", "", ":Units: s"]


def test_characters_mean_themselves_and_names_are_code():
    assert plain(["2 ** n_x of `a_b`, |x|"]) == [r"2 \*\* n\_x of ``a_b``, \|x\|"]


def test_a_colon_within_a_sentence_starts_no_part():
    lines = ["A mask.", "", "The mask is aligned to the end: so it is."]
    assert plain(lines) == lines


def test_an_example_stays_as_it_is():
    example = [">>> f(a_b)", "x_y: 1"]
    assert plain(["A sum.", "", *example]) == ["A sum.", "", *example]

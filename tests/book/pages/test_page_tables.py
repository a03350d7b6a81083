"""Columns of numbers are found in tables as the book writes them, and what is long is folded."""

import re

import page_tables
import pytest

HEAD = "<table><thead><tr><th>kernel</th><th>ms</th></tr></thead><tbody>"


def table(*rows):
    body = "".join(f"<tr><td>{name}</td><td>{ms}</td></tr>" for name, ms in rows)
    return f"{HEAD}{body}</tbody></table>"


@pytest.mark.parametrize(
    "texts",
    [
        ["1.5", "–", "2"],
        ["16,896 B", "[512 B]"],
        ["24.2%", "0.9 %"],
        ["2^-11", "1.2e-05", "-126"],
        ["3 to 4 µs", "nan"],
        ["0.94×", "≤ 7"],
    ],
)
def test_columns_of_numbers(texts):
    assert page_tables.is_numbers(texts)


@pytest.mark.parametrize("texts", [["sm_90", "8"], ["–", ""], [], ["2 warps of 32"], ["fp16"]])
def test_columns_of_words(texts):
    assert not page_tables.is_numbers(texts)


def test_numbers_and_their_head_are_marked_and_words_are_not():
    marked = page_tables.with_numbers(table(("mma", "1.5"), ("fma", "<b>2</b>")))
    assert '<th class="lab-number">ms</th>' in marked
    assert '<td class="lab-number"><b>2</b></td>' in marked
    assert "<td>mma</td>" in marked
    given = '<td class="data row0">7</td>'
    assert 'class="lab-number data row0"' in page_tables.with_numbers(f"<tr>{given}</tr>")


def test_a_table_with_cells_that_span_stays_as_it_is():
    spanned = table(("mma", "1")).replace("<td>mma", '<td rowspan="2">mma')
    assert page_tables.with_numbers(spanned) == spanned


@pytest.fixture
def arranged(tmp_path):
    def arrange(text, name="page.html"):
        (tmp_path / name).write_text(text)
        page_tables.arrange(tmp_path)
        return (tmp_path / name).read_text()

    return arrange


def test_long_tables_outputs_and_the_changelog_fold_and_keep_all(arranged):
    rows = [("mma", str(i)) for i in range(page_tables.MOST_ROWS + 1)]
    lines = "line\n" * (page_tables.MOST_LINES + 1)
    pre = f'<div class="output stream a"><div class="highlight"><pre>{lines}</pre></div></div>'
    items = "<li>entry</li>" * (page_tables.MOST_ITEMS + 1)
    entries = f'<ul class="simple">{items}</ul>'
    for text, name, said in (
        (table(*rows), "page.html", f"All {len(rows)} rows"),
        (pre, "page.html", "All 25 lines"),
        (entries, "changelog.html", "All 31 entries"),
    ):
        folded = arranged(text, name)
        assert said in folded
        assert folded.count('<div class="lab-fold">') == 1
        for entry in ("<tr>", "line", "<li>"):
            assert folded.count(entry) >= text.count(entry)
    assert "lab-fold" not in arranged(table(*rows[1:]))
    assert "lab-fold" not in arranged(entries)  # of another page
    assert "lab-fold" not in arranged(f"<details>{table(*rows)}</details>")


def test_the_style_sheet_hides_the_rest_of_what_folds_except_on_paper():
    style = (page_tables.Path(page_tables.__file__).parent / "_static" / "lab.css").read_text()
    hidden = set(re.findall(r"^\.lab-fold:not\(:has\(> details\[open\]\)\) > (\w+)", style, re.M))
    paper = style[style.index("@media print") :]
    assert hidden == set(re.findall(r"\.lab-fold > (\w+)[^{]*\{[^}]*!important", paper))

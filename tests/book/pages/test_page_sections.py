"""Pages fold sections of chapters and entries of the reference, and keep every word of them."""

import re

import chapter_frame
import page_sections
import pytest

from tests.repo.files import read

PAGE = """<section id="measurement">
<h2>Measurement</h2>
<section id="the-run">
<span id="run"></span><h3><span class="section-number">1.2. </span>The run<a class="headerlink" \
href="#the-run">#</a></h3>
<p>Words.</p>
<section id="exercise-content"><p>More.</p></section>
</section>
<section id="after"><h3>After</h3></section>
</section>"""


def test_a_named_section_folds_with_all_that_it_holds():
    folded = page_sections.folded(PAGE, ("The run",))
    assert folded.count("<details") == folded.count("</details>") == 1
    assert folded.count("<section") == folded.count("</section>")
    inside = folded[folded.index("<summary>") : folded.index("</details>")]
    assert "<h3>" in inside
    assert "Words." in inside
    assert "More." in inside
    assert "After" not in inside
    assert '<div id="the-run">' in inside
    words = [re.sub(r"<[^>]+>", "", page).split() for page in (folded, PAGE)]
    assert words[0] == words[1]


def test_a_section_that_is_not_there_is_named():
    with pytest.raises(ValueError, match="no section is called Nothing"):
        page_sections.folded(PAGE, ("The run", "Nothing"))


@pytest.mark.parametrize("chapter", chapter_frame.chapters(), ids=lambda chapter: chapter.file)
def test_chapters_have_the_sections_that_fold(chapter):
    titles = re.findall(r"^# ### (.+)$", read(f"notebooks/{chapter.file}.py"), re.MULTILINE)
    assert set(chapter.folded) <= set(titles)


def entry(name, *members, parts="Shapes"):
    inside = "".join(entry(f"{name}.{each}") for each in members)
    return (
        f'<dl class="py function"><dt class="sig sig-object py" id="labkernels.{name}">sig</dt>'
        f'<dd><p>Do it.</p><dl><dt class="field-odd">{parts}<span class="colon">:</span></dt>'
        f"<dd><p>[n]</p></dd></dl>{inside}</dd></dl>"
    )


def test_below_a_name_its_first_sentences_stand_and_a_lid_says_what_follows():
    page = f'<section id="verbs"><h2>Verbs</h2>{entry("Bench", "run")}</section>'
    folded = page_sections.with_lids(page)
    assert "<dd><p>Do it.</p><details" in folded
    assert re.findall("<summary>(.*?)</summary>", folded) == ["Shapes, members", "Shapes"]
    assert re.sub(r"<summary>.*?</summary>|</?details[^>]*>", "", folded) == page


def test_a_section_of_many_names_lists_them():
    names = [f"name{i}" for i in range(page_sections.MOST_NAMES + 1)]
    head = '<section id="many"><h2>Many</h2><p>What they are.</p>'
    folded = page_sections.with_lids(f"{head}{''.join(map(entry, names))}</section>")
    listed = re.search("<summary>(<code>.*?)</summary>", folded)[1]
    assert re.findall("<code>(.*?)</code>", listed) == names
    assert folded.startswith(f"{head}<details")
    assert folded.endswith("</details></section>")

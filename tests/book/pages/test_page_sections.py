"""A page folds the sections that its chapter names, and keeps every word and name of them."""

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

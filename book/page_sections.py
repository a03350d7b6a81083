"""Folds the sections of a chapter that its entry in chapters.toml names: a page opens them."""

import re
from pathlib import Path

import chapter_frame

_HEADING = re.compile(
    r'<section id="(?P<id>[^"]+)">\s*(?P<more>(?:<span id="[^"]*"></span>\s*)*)'
    r"(?P<heading><h3>(?P<title>.*?)</h3>)",
    re.DOTALL,
)
_EDGE = re.compile(r"<section\b|</section>")
_NOT_TITLE = re.compile(
    r'<span class="section-number">.*?</span>|<a class="headerlink".*?</a>|<[^>]+>'
)


def fold(pages: Path) -> None:
    """Folds the sections of all chapters in place.

    Raises: ValueError naming a section that a page does not have.
    """
    folds = {chapter.file: chapter.folded for chapter in chapter_frame.chapters()}
    for path in sorted((pages / "notebooks").glob("*.html")):
        titles = folds.get(path.stem, ())
        path.write_text(folded(path.read_text(encoding="utf-8"), titles), encoding="utf-8")


def folded(text: str, titles: tuple[str, ...]) -> str:
    """Returns a page whose sections with these titles stand in a `details` each.

    The section's name moves into it, so that a link to the section opens it.
    Raises: ValueError naming a title that the page does not have.
    """
    wanted, parts, at = set(titles), [], 0
    for found in _HEADING.finditer(text):
        title = _NOT_TITLE.sub("", found["title"]).strip()
        if title not in wanted:
            continue
        wanted.remove(title)
        end = _end(text, found.end())
        parts += [text[at : found.start()], "<section>", found["more"]]
        parts += [f'<details class="lab-more"><summary>{found["heading"]}</summary>']
        parts += [f'<div id="{found["id"]}">', text[found.end() : end], "</div></details>"]
        at = end
    if wanted:
        raise ValueError(f"no section is called {', '.join(sorted(wanted))}")
    return "".join([*parts, text[at:]])


def _end(text: str, start: int) -> int:
    """Returns where the section that holds this place ends."""
    depth = 1
    for edge in _EDGE.finditer(text, start):
        depth += 1 if edge[0].startswith("<section") else -1
        if depth == 0:
            return edge.start()
    raise ValueError("a section has no end")

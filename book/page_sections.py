"""Folds what a page opens when it is asked for.

These are the sections of a chapter that its entry in chapters.toml names, the chapters' sections of
the evidence, and in the API reference what stands below the first sentences of a name, and sections
of many names.
"""

import re
from pathlib import Path

import chapter_frame

_HEADING = re.compile(
    r'<section id="(?P<id>[^"]+)">\s*(?P<more>(?:<span id="[^"]*"></span>\s*)*)'
    r"(?P<heading><(?P<level>h[23])>(?P<title>.*?)</(?P=level)>)",
    re.DOTALL,
)
_EDGE = re.compile(r"<section\b|</section>")
_ENTRY = re.compile(
    r'<dl class="py \w+">\s*<dt class="sig[^>]*>.*?</dt>\s*<dd><p>.*?</p>\s*(?!</dd>)', re.DOTALL
)
MOST_NAMES = 8  # of a section of the API reference that stays open
_NAME = re.compile(r'<dt class="sig[^>]*\bid="(?:labkernels\.)?([\w.]+)"')
_CHAPTER = re.compile(r"<section\b[^>]*>\s*(?:<span[^>]*></span>\s*)*<h2>")
_BODY_EDGE = re.compile(r"<dd\b|</dd>")
_PART = re.compile(r'<dt class="field-\w+">(.*?)<span class="colon">')
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
    for path in pages.glob("book/evidence.html"):
        text = path.read_text(encoding="utf-8")
        titles = tuple(_title(found) for found in _HEADING.finditer(text))
        path.write_text(folded(text, titles), encoding="utf-8")
    for path in pages.glob("book/api.html"):
        path.write_text(with_lids(path.read_text(encoding="utf-8")), encoding="utf-8")


def folded(text: str, titles: tuple[str, ...]) -> str:
    """Returns a page whose sections with these titles stand in a `details` each.

    The section's names move into it, so that a link to the section opens it.
    Raises: ValueError naming a title that the page does not have.
    """
    wanted, parts, at = set(titles), [], 0
    for found in _HEADING.finditer(text):
        title = _title(found)
        if title not in wanted:
            continue
        wanted.remove(title)
        end = _end(text, found.end())
        parts += [text[at : found.start()], "<section>"]
        parts += [f'<details class="lab-more"><summary>{found["heading"]}</summary>']
        parts += [f'<div id="{found["id"]}">', found["more"], text[found.end() : end]]
        parts += ["</div></details>"]
        at = end
    if wanted:
        raise ValueError(f"no section is called {', '.join(sorted(wanted))}")
    return "".join([*parts, text[at:]])


def with_lids(text: str) -> str:
    """Returns an API reference in which `details` have what is read one name at a time.

    The summary below a name says which parts follow, and that of a section which names.
    """
    for found in reversed(list(_ENTRY.finditer(text))):
        end = _end(text, found.end(), _BODY_EDGE)
        rest = text[found.end() : end]
        own = rest.partition('<dl class="py ')[0]
        parts = _PART.findall(own) + ["example"] * ("doctest" in own)
        parts += ["members"] * (own != rest)
        summary = f"<summary>{', '.join(parts) or 'more'}</summary>"
        lid = f'<details class="lab-more">{summary}{rest}</details>'
        text = f"{text[: found.end()]}{lid}{text[end:]}"
    for found in reversed(list(_CHAPTER.finditer(text))):
        text = _with_many_names(text, found.end())
    return text


def _with_many_names(text: str, start: int) -> str:
    """Returns the page with the names of a section in a `details`, if they are many."""
    end = _end(text, start)
    first = text.find('<dl class="py ', start, end)
    names = [name for name in _NAME.findall(text, start, end) if first >= 0]
    own = [name for name in names if name.rpartition(".")[0] not in names]
    if len(own) <= MOST_NAMES or "<section" in text[first:end]:
        return text
    shown = ", ".join(f"<code>{name}</code>" for name in own)
    lid = f'<details class="lab-more"><summary>{shown}</summary>{text[first:end]}</details>'
    return f"{text[:first]}{lid}{text[end:]}"


def _title(found: re.Match[str]) -> str:
    return _NOT_TITLE.sub("", found["title"]).strip()


def _end(text: str, start: int, edges: re.Pattern[str] = _EDGE) -> int:
    """Returns where the section, or the element with these edges, that holds this place ends."""
    depth = 1
    for edge in edges.finditer(text, start):
        depth += -1 if edge[0].startswith("</") else 1
        if depth == 0:
            return edge.start()
    raise ValueError("a section has no end")

"""MyST's roles in plain Markdown: a link with words, or the number that a name stands for."""

import re
from functools import cache
from pathlib import Path

import jupytext
import nbformat
import yaml
from pybtex.database import Person, parse_file

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = ROOT / "notebooks"
ROLE = re.compile(r"\{(?P<name>[a-z:]+)\}`(?P<text>[^`]+)`")
TITLED = re.compile(r"(.*\S)\s*<(.*)>", re.S)
EQUATION = re.compile(r"^(\s*)\$\$ \((.+)\)$", re.M)
EXERCISE = re.compile(r"\{exercise\}.*\n:label: (\S+)")
CITATION = re.compile(r"\s*\{cite:[pt]\}`[^`]+`")
ENTRY = re.compile(r"^(\S.*)\n  (\S.*)", re.M)
FIRST_WORD = re.compile(r"^equation \(", re.M)  # each sentence begins a line
GLUED = "application/papermill.record/text/plain"


class Words:
    """What the names in a chapter stand for."""

    def __init__(self, name: str, notebook: nbformat.NotebookNode) -> None:
        self.name = name
        text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
        self.exercises = {label: n for n, label in enumerate(EXERCISE.findall(text), 1)}
        self.equations = {label: n for n, (_, label) in enumerate(EQUATION.findall(text), 1)}
        figures = [cell.metadata.get("mystnb", {}).get("figure") for cell in notebook.cells]
        self.figures = {found["name"]: n for n, found in enumerate(filter(None, figures), 1)}
        self.glued = {
            output.metadata["scrapbook"]["name"]: output.data[GLUED].strip("'")
            for cell in notebook.cells
            for output in cell.get("outputs", ())
            if GLUED in output.get("data", {})
        }

    def plain(self, text: str) -> str:
        """Returns a text with its roles as links and numbers, and its equations numbered."""
        text = ROLE.sub(lambda found: self._role(found["name"], found["text"]), text)
        text = FIRST_WORD.sub("Equation (", text)
        return EQUATION.sub(self._numbered, text)

    def _numbered(self, found: re.Match) -> str:
        indent, label = found.groups()
        return f"{indent}\\tag{{{self.equations[label]}}}\n{indent}$$"

    def _role(self, name: str, text: str) -> str:
        titled = TITLED.fullmatch(text)
        shown, target = titled.groups() if titled else (None, text)
        match name:
            case "eq":
                return self._equation(target)
            case "numref":
                return f"Figure {self.figures[target]}"
            case "glue:text":
                return self.glued[target]
            case "doc":
                return _document(target, shown)
            case "term":
                page = f"{published()}book/glossary.html"
                return f'[{shown or target}]({page} "{_meaning(target)}")'
            case "cite:t" | "cite:p":
                works = "; ".join(_work(key, inside=name == "cite:p") for key in text.split(","))
                return f"({works})" if name == "cite:p" else works
        raise ValueError(f"plain_roles.py knows no role {name}")

    def _equation(self, label: str) -> str:
        if label in self.equations:
            return f"({self.equations[label]})"
        chapter, number = _equations()[label]
        return f"equation ({number}) of {_document(chapter, None)}"


@cache
def published(config: Path = ROOT / "book" / "_config.yml") -> str:
    """Returns the address at which .github/publish_book.sh puts the newest pages."""
    repository = yaml.safe_load(config.read_text(encoding="utf-8"))["repository"]["url"]
    owner, name = repository.split("/")[-2:]
    return f"https://{owner}.github.io/{name}/latest/"


def _document(target: str, shown: str | None) -> str:
    """Returns a link to a built page of the book, or to a notebook."""
    if target.startswith("/book/"):
        path, title = ROOT / f"{target[1:]}.md", r"^# (.+)$"
        link = f"{published()}{target[1:]}.html"
    else:
        path = NOTEBOOKS / f"{Path(target).name}.py"
        link, title = f"{path.stem}.ipynb", r"^# # (.+)$"
    found = re.search(title, path.read_text(encoding="utf-8"), re.M)
    return f"[{shown or found[1]}]({link})"


def _work(key: str, *, inside: bool) -> str:
    """Returns a link with authors and year of a work; inside: in parentheses already."""
    entry = _works().entries[key.strip()]
    people: list[Person] = entry.persons["author"]
    names = [" ".join(person.prelast_names + person.last_names).strip("{}") for person in people]
    authors = f"{names[0]} et al." if len(names) > 2 else " and ".join(names)
    fields = entry.fields
    url = fields["url"] if "url" in fields else f"https://doi.org/{fields['doi']}"
    return (
        f"[{authors}, {fields['year']}]({url})"
        if inside
        else f"[{authors} ({fields['year']})]({url})"
    )


def _meaning(term: str) -> str:
    """Returns the glossary's first sentence on a term in bare words, as a tooltip needs it."""
    first = re.split(r"(?<=[^.].)\.(?=\s|$)", CITATION.sub("", _glossary()[term]))[0]
    first = ROLE.sub(_bare, first)
    return re.sub(r"[$`]", "", first).replace('"', "'") + "."


def _bare(found: re.Match) -> str:
    """Returns the words of a role of the glossary."""
    if found["name"] != "doc":
        return found["text"].split(" <")[0]
    page = (ROOT / "book" / f"{found['text']}.md").read_text(encoding="utf-8")
    return re.search(r"^# (.+)$", page, re.M)[1]


@cache
def _works():
    return parse_file(ROOT / "book" / "references.bib")


@cache
def _glossary() -> dict[str, str]:
    return dict(ENTRY.findall((ROOT / "book" / "glossary.md").read_text(encoding="utf-8")))


@cache
def _equations() -> dict[str, tuple[str, int]]:
    """Returns chapter and number of each equation, by its label."""
    found = {}
    for path in sorted(NOTEBOOKS.glob("[!_]*.py")):
        for label, number in Words(path.stem, jupytext.read(path)).equations.items():
            found[label] = (path.stem, number)
    return found

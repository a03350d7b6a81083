"""A chapter in plain Markdown, as JupyterLab, Colab and a code host all show it.

The scripts are in MyST, which the book needs. The notebook of a script has links with words,
listings in full, numbers where the script names a result, captions, and folded code and solutions.
"""

import copy
import hashlib
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import answers
import chapter_frame
import nbformat
import plain_roles
import yaml

ROOT = Path(__file__).resolve().parents[1]
FENCE = re.compile(
    r"^(?P<mark>`{3}|:{3})\{(?P<name>[\w-]+)\} ?(?P<words>.*)\n(?P<body>(?:.*\n)*?)(?P=mark)$", re.M
)
OPTION = re.compile(r"^:([\w-]+): (.*)\n", re.M)
FOLDED_CODE = {"hide-input", "hide-cell", "remove-input", "remove-cell", "evidence"}
FOLDED_OUTPUT = {"hide-output", "hide-cell", "remove-output", "remove-cell", "evidence"}
OPENED = {
    "hide-cell",
    "hide-output",
    "evidence",
}  # under a lid on a page, in a box that scrolls here
SOLUTION = "#### Solution"
ANSWER = "your-answer"  # the tag of a cell that a reader fills in, and that nobody has run
ASKED = re.compile(r'exercises\.check\(\s*"([\w-]+)"')
MARK = re.compile(r"\s*(?://|#) \[/?lab: [^\]]*\]\s*")  # where another listing begins or ends
CUT = "\0"  # where a Markdown cell is cut in two


def plain(notebook: nbformat.NotebookNode, name: str) -> nbformat.NotebookNode:
    """Returns an executed chapter without MyST, with its frame.

    Raises: ValueError naming a role, a directive or a target that is not known here.
    """
    notebook = copy.deepcopy(notebook)
    if name in (chapter.file for chapter in chapter_frame.chapters()):
        notebook = chapter_frame.framed(notebook, name)
    words = plain_roles.Words(name, notebook)
    cells = list(_with_answers([new for cell in notebook.cells for new in _cells(cell, words)]))
    for i, cell in enumerate(cells):
        cell.id = hashlib.sha256(f"{i}\0{cell.source}".encode()).hexdigest()[:8]
    notebook.metadata.pop("jupytext", None)  # JupyterLab would read the cells from the script
    return nbformat.from_dict(notebook | {"cells": cells})


def _cells(
    cell: nbformat.NotebookNode, words: plain_roles.Words
) -> Iterator[nbformat.NotebookNode]:
    if cell.cell_type != "code":
        text = FENCE.sub(lambda found: _directive(found, words), words.plain(cell.source))
        for part in filter(None, map(str.strip, text.split(CUT))):
            folded = {"jp-MarkdownHeadingCollapsed": True} if part == SOLUTION else {}
            yield nbformat.v4.new_markdown_cell(part, metadata=folded)
        return
    tags = set(cell.metadata.get("tags", ()))
    fold = {"source_hidden": FOLDED_CODE, "outputs_hidden": FOLDED_OUTPUT}
    hidden = {key: True for key, names in fold.items() if tags & names}
    if tags & OPENED and cell.outputs and not any("scrapbook" in o.metadata for o in _shown(cell)):
        # JupyterLab shows no way to open the output of a cell whose code is folded, too.
        hidden.pop("outputs_hidden")
        cell.metadata["scrolled"] = True
    if hidden:
        cell.metadata["jupyter"] = hidden
    figure = cell.metadata.get("mystnb", {}).get("figure")
    if "source_hidden" in hidden and not cell.source.startswith("%%"):
        cell.metadata["cellView"] = "form"  # Colab folds a cell of this kind that has a title
        title = f"Code of figure {words.figures[figure['name']]}\n" if figure else "Code\n"
        cell.source = f"# @title {title}{cell.source}".replace("title Code\n# ", "title ", 1)
    for output in cell.outputs:
        _without_programs(output)
    yield cell
    if figure:
        caption = f"**Figure {words.figures[figure['name']]}.** {words.plain(figure['caption'])}"
        yield nbformat.v4.new_markdown_cell(caption)


def _with_answers(cells: list[nbformat.NotebookNode]) -> Iterator[nbformat.NotebookNode]:
    """Yields the cells, and before each solution a cell for the reader's answer and its check."""
    for i, cell in enumerate(cells):
        if cell.source == SOLUTION:
            code = "\n".join(
                each.source for each in itertools.takewhile(_in_solution, cells[i + 1 :])
            )
            for name in dict.fromkeys(ASKED.findall(code)):
                tags = {"tags": [ANSWER]}
                yield nbformat.v4.new_code_cell(answers.cell(name), metadata=tags)
        yield cell


def _in_solution(cell: nbformat.NotebookNode) -> bool:
    return cell.cell_type == "code" or not cell.source.startswith("#")


def _shown(cell: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    """Returns the outputs that are data, without printed words."""
    return [output for output in cell.outputs if "data" in output]


def _without_programs(output: nbformat.NotebookNode) -> None:
    """Keeps only the words of an output that moves or asks for input; a run shows it whole.

    Of a notebook that JupyterLab does not trust yet, it shows no SVG, but all texts in a row.
    """
    data = output.get("data", {})
    if "lab-motion" in data.get("text/html", ""):
        del data["text/html"]
    if "lab-widget" in data.get("text/html", ""):
        del data["text/html"]
        data["text/plain"] += " In JupyterLab, run this cell to see it here."


def _directive(found: re.Match, words: plain_roles.Words) -> str:
    """Returns what stands in the place of a directive."""
    options = dict(OPTION.findall(found["body"]))
    body, title = OPTION.sub("", found["body"]).strip(), found["words"]
    match found["name"]:
        case "literalinclude":
            return _listing(title, options)
        case "exercise":
            return f"### Exercise {words.exercises[options['label']]}\n\n{body}"
        case "solution-start":
            return f"{CUT}{SOLUTION}{CUT}"
        case "solution-end":
            return CUT
        case "admonition":
            return "\n".join(
                f"> {line}".rstrip() for line in [f"**{title}**", "", *body.split("\n")]
            )
        case "raw":  # of a page alone
            return ""
        case "table":
            return f"**{title}**\n\n{body}"
    raise ValueError(f"plain.py knows no directive {found['name']}")


def _listing(path: str, options: dict[str, str]) -> str:
    """Returns the lines of a source that a literalinclude names, by Sphinx's rules."""
    lines = (ROOT / path[1:]).read_text(encoding="utf-8").splitlines()
    first = _line(lines, 0, options, "start")
    last = _line(lines, first, options, "end", otherwise=len(lines))
    code = "\n".join(line for line in lines[first:last] if not MARK.fullmatch(line)).strip("\n")
    language = options["language"].replace("cpp", "c++")  # the name that JupyterLab knows
    return f"```{language}\n{code}\n```\n\n[{path[1:]}](..{path})"


def _line(
    lines: list[str], after: int, options: dict[str, str], end: str, otherwise: int = 0
) -> int:
    """Returns the line at which a listing starts or ends."""
    for option, further in ((f"{end}-at", end == "end"), (f"{end}-after", 1), (f"{end}-before", 0)):
        if option in options:
            text = yaml.safe_load(options[option])
            found = [i for i in range(after, len(lines)) if text in lines[i]]
            if not found:
                raise ValueError(f"no line has {text!r}")
            return found[0] + further
    return otherwise

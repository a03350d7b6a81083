"""The page of evidence: what only a checker needs, a section a chapter, from its tagged cells."""

import re
from collections.abc import Iterator

import nbformat
from plain_roles import GLUED

from labkernels.bench.log import MIME

TAG = "evidence"
PLACE = "<!-- the sections stand here -->"
_TABLE = re.compile(r"\bT_(?=\w)")  # begins the name of a table, which two chapters may share


def take(notebook: nbformat.NotebookNode, name: str) -> str:
    """Takes the tagged cells out of a chapter's page, which links to them; returns their section.

    The section begins with what ran. Code stays in the page, unseen: sentences have its numbers.
    """
    tagged = [cell for cell in notebook.cells if TAG in cell.metadata.get("tags", ())]
    if not tagged:
        return ""
    title = re.search(r"^# (.+)$", notebook.cells[0].source, re.M)[1]
    parts = [f"(evidence-{name})=\n## {title}", f"The chapter is {{doc}}`/notebooks/{name}`."]
    logs_first = sorted(tagged, key=lambda cell: not _is_log(cell))
    parts += [part for cell in logs_first for part in _parts(cell, name)]
    notebook.cells = [c for c in notebook.cells if c.cell_type == "code" or c not in tagged]
    for cell in tagged:
        cell.metadata["tags"] = ["remove-cell"]
    link = f"{{ref}}`evidence <evidence-{name}>`"
    notebook.cells[-1].source += f"\n\nWhat ran here, and tables for checkers: {link}."
    return "\n\n".join(parts)


def _is_log(cell: nbformat.NotebookNode) -> bool:
    return any(MIME in output.get("data", {}) for output in cell.get("outputs", ()))


def _parts(cell: nbformat.NotebookNode, name: str) -> Iterator[str]:
    """Yields the Markdown of a cell, or its code under a lid and what it shows."""
    if cell.cell_type == "markdown":
        yield cell.source
        return
    if not _is_log(cell):
        code = f"````{{code-block}} python\n{cell.source}\n````"
        yield f":::::{{admonition}} Code\n:class: dropdown\n\n{code}\n:::::"
    data = [output.get("data", {}) for output in cell.outputs]
    numbers = [
        f"| {output.metadata['scrapbook']['name'].replace('_', ' ')} | {each[GLUED][1:-1]} |"
        for output, each in zip(cell.outputs, data, strict=True)
        if GLUED in each
    ]
    if numbers:
        yield "\n".join(["| number in a sentence | value |", "|---|---|", *numbers])
    for output, each in zip(cell.outputs, data, strict=True):
        if output.get("text", "").strip():
            yield f"````{{code-block}} text\n{output.text.rstrip()}\n````"
        elif "text/html" in each:
            table = _TABLE.sub(f"T_{name}_", each["text/html"])
            box = f'<div class="cell_output"><div class="output text_html">{table}</div></div>'
            yield f"````{{raw}} html\n{box}\n````"

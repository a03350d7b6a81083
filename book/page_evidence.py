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

    Their code stays in the page, unseen, since sentences have its numbers.
    """
    tagged = [cell for cell in notebook.cells if TAG in cell.metadata.get("tags", ())]
    if not tagged:
        return ""
    title = re.search(r"^# (.+)$", notebook.cells[0].source, re.M)[1]
    parts = [f"(evidence-{name})=\n## {title}", f"The chapter is {{doc}}`/notebooks/{name}`."]
    parts += [part for cell in tagged for part in _parts(cell, name)]
    notebook.cells = [c for c in notebook.cells if c.cell_type == "code" or c not in tagged]
    for cell in tagged:
        cell.metadata["tags"] = ["remove-cell"]
    link = f"{{ref}}`evidence <evidence-{name}>`"
    notebook.cells[-1].source += f"\n\nWhat ran here, and tables for checkers: {link}."
    return "\n\n".join(parts)


def _parts(cell: nbformat.NotebookNode, name: str) -> Iterator[str]:
    """Yields the Markdown of a cell, or its code under a lid and what it shows."""
    if cell.cell_type == "markdown":
        yield cell.source
        return
    data = [output.get("data", {}) for output in cell.outputs]
    if not any(MIME in each for each in data):
        code = f"````{{code-block}} python\n{cell.source}\n````"
        yield f":::::{{admonition}} Code\n:class: dropdown\n\n{code}\n:::::"
    numbers = [
        f"| {output.metadata['scrapbook']['name'].replace('_', ' ')} | {each[GLUED][1:-1]} |"
        for output, each in zip(cell.outputs, data, strict=True)
        if GLUED in each
    ]
    if numbers:
        yield "\n".join(["| number in a sentence | value |", "|---|---|", *numbers])
    for output, each in zip(cell.outputs, data, strict=True):
        if output.output_type == "stream":
            yield f"````{{code-block}} text\n{output.text.rstrip()}\n````"
        elif "text/html" in each:
            table = _TABLE.sub(f"T_{name}_", each["text/html"])
            box = f'<div class="cell_output"><div class="output text_html">{table}</div></div>'
            yield f"````{{raw}} html\n{box}\n````"

"""What a page adds to its notebook: the case as a diagram, widgets, and fewer lids of code."""

import html
import re
from pathlib import Path

import chapter_frame
import nbformat

from labkernels import widgets

HIDDEN = "hide-input"
_OFFERED = {  # what a reader can do with each widget
    "bits_and_sums": "Type numbers, and see what formats and tensor cores make of them.",
    "break_kernel": "Break `decode_mma`, and read what the checks of memory or the bounds say.",
    "budget": "Change the tile, the GPU or the window, and see what a block and a call take.",
    "run_kernel": "Run the kernel in this page, with inputs of your own, and compare its bits.",
    "step_kernel": "Go through a block from barrier to barrier, forward and back.",
    "which_requests_part": "Choose a batch, a GPU and a library, and see which requests part.",
    "tolerance": "Choose atol and rtol, and see which bugs such a test lets through.",
}
_MOTION = re.compile(r"^<!-- motion: (\w+) -->$", re.MULTILINE)


def diagram(chapter: chapter_frame.Chapter) -> str:
    """Returns the case of a chapter: what is given, the ways from there, and what is asked."""
    case = chapter.case
    ways = "".join(f"<li>{html.escape(way)}</li>" for way in case["ways"])
    return (
        f'<div class="lab-case" role="group" aria-label="The case of this chapter">'
        f"<p>{html.escape(case['given'])}</p><ul>{ways}</ul>"
        f'<p class="lab-asked">{html.escape(case["asked"])}</p></div>'
    )


def with_case(notebook: nbformat.NotebookNode, chapter: chapter_frame.Chapter) -> None:
    """Puts the diagram below the title."""
    title, _, rest = notebook.cells[0].source.partition("\n")
    block = f"```{{raw}} html\n{diagram(chapter)}\n```"
    notebook.cells[0].source = f"{title}\n\n{block}\n{rest}"


def with_widgets(notebook: nbformat.NotebookNode, chapter: chapter_frame.Chapter) -> None:
    """Puts the programs that a page offers above the chapter's foot."""
    blocks = ["## In this page"]
    for name, *kernel in chapter.widgets:
        place = getattr(widgets, name)(*kernel)._repr_html_()
        summary = f"<summary>{_code(_OFFERED[name])}</summary>"
        offer = f'<details class="lab-offer">{summary}\n{place}\n</details>'
        blocks.append(f"```{{raw}} html\n{offer}\n```")
    if chapter.widgets:
        notebook.cells.insert(-1, nbformat.v4.new_markdown_cell("\n\n".join(blocks)))


def _code(text: str) -> str:
    return re.sub(r"`(\w+)`", r"<code>\1</code>", text)


def without_stubs(notebook: nbformat.NotebookNode) -> None:
    """Joins hidden code that shows nothing to the hidden code after it, else to that before it."""
    joined: list[nbformat.NotebookNode] = []
    for cell in notebook.cells:
        before = joined[-1] if joined else None
        if before is not None and _is_hidden(before) and _is_hidden(cell):
            if not before.outputs:
                cell.source = f"{joined.pop().source}\n\n\n{cell.source}"
            elif not cell.outputs:
                before.source = f"{before.source}\n\n\n{cell.source}"
                continue
        joined.append(cell)
    notebook.cells = joined


def _is_hidden(cell: nbformat.NotebookNode) -> bool:
    return cell.cell_type == "code" and HIDDEN in cell.metadata.get("tags", [])


def with_motion(text: str, executed: Path) -> str:
    """Returns a page's Markdown with the moving picture of the chapter that it names.

    Raises: ValueError for a chapter that was not executed, or that has none.
    """

    def picture(found: re.Match[str]) -> str:
        path = executed / f"{found[1]}.ipynb"
        cells = nbformat.read(path, 4).cells if path.exists() else []
        for output in (output for cell in cells for output in cell.get("outputs", [])):
            shown = output.get("data", {}).get("text/html", "")
            if "lab-motion" in shown:
                return f"```{{raw}} html\n{shown}\n```"
        raise ValueError(f"{found[1]} has no moving picture")

    return _MOTION.sub(picture, text)

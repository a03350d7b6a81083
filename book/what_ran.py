"""The table of what each chapter ran, from the log that its executed notebook keeps."""

import json
from collections.abc import Mapping
from pathlib import Path

from labkernels.bench.log import Log, log_of

PAGE = Path("book/what_each_chapter_runs.md")
PLACE = "<!-- the table stands here -->"
COLUMNS = ("chapter", "operation", "ran, tensor cores", "figures", "machine")


def read(notebook: Path) -> Log:
    """Returns the log of an executed notebook."""
    return log_of(json.loads(notebook.read_text(encoding="utf-8")))


def table(notebooks: Mapping[str, Path]) -> str:
    """Returns a Markdown table with a row per chapter and operation that ran in it."""
    lines = [_row(COLUMNS), _row(["---"] * len(COLUMNS))]
    for name, path in notebooks.items():
        for row in read(path).rows():
            link = f"{{doc}}`/notebooks/{name}`"
            lines.append(_row([link, *(row[column] for column in COLUMNS[1:])]))
    return "\n".join(lines)


def _row(cells) -> str:
    return f"| {' | '.join(cells)} |"

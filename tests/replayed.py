"""Replays the committed notebooks in nbval, as the chapters ran for the book: a chapter runs once.

python book/build.py --nbval
    runs the chapters whose inputs changed, then
    pytest -p nbval -p tests.replayed --executed _build/executed notebooks

Each of nbval's own tests asks a Jupyter kernel for the outputs of one cell. Here the outputs come
from the run that `make book` shows; nbval compares them as it compares those of a kernel.
"""

from collections.abc import Iterator
from pathlib import Path

import nbformat
import notebook_io
import pytest
from nbval.plugin import IPyNbFile

MESSAGE = "outputs"  # the name of all messages, since only one cell is asked for at a time
IDLE = {"msg_type": "status", "content": {"execution_state": "idle"}}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--executed", type=Path, required=True, help="the folder of executed chapters")


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    return Replayed.from_parent(parent, path=file_path) if file_path.suffix == ".ipynb" else None


class Replayed(IPyNbFile):
    """A committed notebook in nbval, beside the same chapter as it ran here."""

    def setup(self) -> None:
        self.setup_sanitize_files()
        found = notebook_io.pair(self.config.option.executed / self.path.name, self.path.stem)
        cells = [cell for cell in found.cells if cell.cell_type == "code"]
        committed = [cell.source for cell in self.nb.cells if cell.cell_type == "code"]
        if [cell.source for cell in cells] != committed:
            raise ValueError(f"{self.path.name}: the cells differ; `make notebooks` writes it anew")
        self.kernel = Run(cells)


class Run:
    """Answers what nbval asks of a kernel, from cells that ran."""

    def __init__(self, cells: list[nbformat.NotebookNode]) -> None:
        self.cells = iter(cells)
        self.messages: Iterator[dict] = iter(())

    def execute_cell_input(self, source: str, allow_stdin: bool | None = None) -> str:
        """Return the name of the next messages: the outputs of the next cell with this source."""
        cell = next(cell for cell in self.cells if cell.source == source)  # -k may leave some out
        messages = [{"msg_type": each.output_type, "content": each} for each in cell.outputs]
        self.messages = iter([*messages, IDLE])
        return MESSAGE

    def get_message(self, stream: str, timeout: float | None = None) -> dict:
        return {**next(self.messages), "parent_header": {"msg_id": MESSAGE}}

    def await_reply(self, message: str, timeout: float | None = None) -> None:
        pass  # the cell has run

    def await_idle(self, message: str, timeout: float) -> None:
        self.messages = iter(())

    def is_alive(self) -> bool:
        return True

    def stop(self) -> None:
        self.messages = iter(())

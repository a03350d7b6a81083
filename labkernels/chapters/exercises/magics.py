"""Cells whose text is the answer to an assignment: %%cuda NAME and %%triton NAME."""

from labkernels.chapters.exercises.checking import check
from labkernels.chapters.exercises.report import Report


def load_ipython_extension(shell) -> None:
    """Register the cells; `%load_ext labkernels.chapters.exercises` calls this function."""
    for language in ("cuda", "triton"):
        shell.register_magic_function(_answered, magic_kind="cell", magic_name=language)


def _answered(line: str, cell: str) -> Report:
    """Check the cell as the answer to the assignment that the line names.

    The magic's own line counts as line 1, as in the line numbers that JupyterLab shows.
    """
    return check(line.strip(), f"\n{cell}")

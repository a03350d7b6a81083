"""The log of what a bench ran and drew, which a notebook keeps in its outputs."""

import html
import json
from dataclasses import dataclass, field
from typing import Any

MIME = "application/vnd.labkernels.bench+json"
FIGURES = ("budget", "timing", "occupancy", "errors")


@dataclass
class Log:
    """Runs, figures and formulas, in the order in which they were made.

    runs: a dict for each kernel that ran and whose output was judged, with the keys operation,
    kernel, language, tensor_cores ("on" or "off"), machine and workload. figures, formulas: the
    operation and the kind of each.
    """

    runs: list[dict[str, str]] = field(default_factory=list)
    figures: list[tuple[str, str]] = field(default_factory=list)
    formulas: list[tuple[str, str]] = field(default_factory=list)

    def __add__(self, other: "Log") -> "Log":
        return Log(
            self.runs + other.runs, self.figures + other.figures, self.formulas + other.formulas
        )

    def drew(self, kind: str, *operations: str) -> None:
        """Note a figure of the notebook's own, in the cell that draws it.

        Raises: ValueError unless kind is one of FIGURES.
        """
        if kind not in FIGURES:
            raise ValueError(f"kind = {kind!r}, allowed: {', '.join(FIGURES)}")
        self.figures += [(operation, kind) for operation in operations]

    @property
    def operations(self) -> tuple[str, ...]:
        """The operations that ran."""
        return tuple(dict.fromkeys(run["operation"] for run in self.runs))

    def rows(self) -> list[dict[str, str]]:
        """Return a row per operation: what ran, on which machine, and what was drawn."""
        return [self._row(operation) for operation in self.operations]

    def _row(self, operation: str) -> dict[str, str]:
        runs = [run for run in self.runs if run["operation"] == operation]
        ways = dict.fromkeys(f"{run['language']} {run['tensor_cores']}" for run in runs)
        return {
            "operation": operation,
            "workload": "; ".join(dict.fromkeys(run["workload"] for run in runs)),
            "machine": "; ".join(dict.fromkeys(run["machine"] for run in runs)),
            "ran, tensor cores": ", ".join(way for way in ways if not way.startswith("torch")),
            "kernels": ", ".join(dict.fromkeys(run["kernel"] for run in runs)),
            "figures": ", ".join(dict.fromkeys(k for o, k in self.figures if o == operation)),
        }

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict[str, Any]:
        """Return the table for readers, and the log for programs that read outputs of notebooks."""
        del include, exclude  # a front end picks the representation that it can show
        told = {"runs": self.runs, "figures": self.figures, "formulas": self.formulas}
        rows = self.rows()
        return {MIME: told, "text/html": _table(rows), "text/plain": json.dumps(rows, indent=1)}


def _table(rows: list[dict[str, str]]) -> str:
    if not rows:
        return "<p>Nothing has run yet.</p>"
    head = "".join(f"<th>{html.escape(name)}</th>" for name in rows[0])
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row.values()) + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"

"""How nbgrader collects and grades the course.

The check of an assignment runs beside the student's Python, which could change the check. So
nothing of the student's is run: nbgrader keeps the answer if it is a text or numbers.
"""

import ast

from nbgrader.converters.autograde import Autograde
from nbgrader.preprocessors import NbGraderPreprocessor

from labkernels.chapters import exercises

PLAIN = (ast.Constant, ast.Tuple, ast.List, ast.BinOp, ast.UnaryOp)
SIGNS = (ast.operator, ast.unaryop, ast.expr_context)
IMPORT = "from labkernels.chapters import exercises"


def is_plain(line: ast.stmt) -> bool:
    """Returns whether a line of an answer's cell gives the answer, as a text or numbers."""
    match line:
        case ast.Assign(targets=[ast.Name(id="answer")], value=value):
            return all(isinstance(node, (*PLAIN, *SIGNS)) for node in ast.walk(value))
    return ast.unparse(line) == IMPORT


def is_answer(source: str) -> bool:
    """Returns whether a cell gives the answer and does nothing else."""
    try:
        return all(map(is_plain, ast.parse(source).body))
    except SyntaxError:
        return True  # such a cell runs nothing


class AnswersAlone(NbGraderPreprocessor):
    """Makes comments of what else a student's notebook of an assignment would run."""

    def preprocess(self, notebook, resources):
        """Returns the notebook and the resources, as nbgrader asks for."""
        name = resources["nbgrader"]["notebook"]
        for cell in notebook.cells if name in exercises.names() else ():
            mark = cell.metadata.get("nbgrader", {}).get("grade_id")
            if cell.cell_type != "code" or mark == f"{name}-check":
                continue
            if mark != f"{name}-answer" or not is_answer(cell.source):
                why = "Not run: `answer` is a text or numbers, and no other Python is run."
                cell.source = "\n".join(f"# {line}" for line in [why, *cell.source.splitlines()])
        return notebook, resources


c = get_config()  # noqa: F821, which nbgrader gives
c.CourseDirectory.course_id = "labkernels"
c.ClearSolutions.code_stub = {"python": "# Write your answer in this cell."}
c.ExecutePreprocessor.timeout = 600
sanitizing = Autograde.class_traits()["sanitize_preprocessors"].default()
c.Autograde.sanitize_preprocessors = [*sanitizing, AnswersAlone]

"""Mutates the solutions of the assignments: operators, constants, order, lines and types.

A mutant of an answer in C++ changes one place of its text, one in Triton changes one node of its
tree, and a number is another number. Mutants that behave like the solution are named in
`survivors.toml` with the reason.
"""

import ast
import copy
import importlib
import random
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from labkernels.chapters import exercises
from labkernels.chapters.exercises import Exercise
from labkernels.cuda.host.build import HostKernelError

HERE = Path(__file__).parent
LEAST = 20  # mutants of an assignment, where its solution is long enough
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
# What is replaced, by what; each place is one mutant.
_SWAPS = (
    *((rf"(?<=[\w)\]]) {re.escape(a)} (?=[\w(-])", f" {b} ") for a, b in ("+-", "-+", "*+", "/*")),
    *(
        (rf" {re.escape(a)} ", f" {b} ")
        for a, b in (("%", "/"), ("/", "%"), ("&", "|"), ("^", "+"))
    ),
    *((rf" {a} ", f" {b} ") for a, b in (("<", "<="), (">", ">="), (">=", ">"), ("<", ">="))),
    *((rf"(?<![\w.]){a}(?![\w.])", b) for a, b in (("0", "1"), ("1", "0"), ("1", "2"), ("2", "1"))),
    *((rf"(?<![\w.]){a}(?![\w.])", b) for a, b in (("16", "8"), ("32", "16"), ("4", "3"))),
    *((rf"\b{a}\b", b) for a, b in (("i64", "int"), ("keys", "dim - 1"), ("f16", "bf16"))),
    *((rf"\b{a}\b", b) for a, b in (("maximum", "minimum_of"), ("minus_infinity", "lowest_score"))),
    *(
        (rf"\b{a}\b", b)
        for a, b in (("lowest_score", "minus_infinity"), ("sync_block", "sync_warp"))
    ),
    *(
        (rf"\b{a}\b", b)
        for a, b in (("sync_warp", "sync_block"), ("true", "false"), ("row", "token"))
    ),
    *((rf"\b{a}\b", b) for a, b in (("state.l", "state.o"), ("state.o", "state.l"))),
    *((rf"\b{a}\b", b) for a, b in (("a", "b"), ("b", "a"), ("of_a", "of_b"), ("of_b", "of_a"))),
    (r"(\d\.\d+)f", r"(\1f * 1.00001f)"),
    (r"\+\+(\w+)", r"\1 += 2"),
    (r" \? (.+?) : (.+?)(?=[;,)])", r" ? \2 : \1"),
)
_MINIMUM = "LAB_DEVICE float minimum_of(float a, float b) { return a < b ? a : b; }\n"


@dataclass(frozen=True)
class Mutant:
    """A changed solution: what was changed where, and the answer."""

    what: str
    answer: str


def mutants(exercise: Exercise, most: int | None = None) -> list[Mutant]:
    """Return the mutants of a solution; `most` of them, drawn with the assignment's number."""
    solution = _COMMENT.sub("", exercise.solution) if exercise.place[0] else exercise.solution
    if exercise.grader == "triton":
        found = list(_of_tree(solution))
    elif exercise.place[0]:
        found = [*_of_text(solution), *_of_lines(solution)]
    else:
        found = list(_of_words(exercise))
    unique = list({mutant.answer: mutant for mutant in found}.values())
    if most is None or len(unique) <= most:
        return unique
    return random.Random(exercise.number).sample(unique, most)


def _of_text(solution: str) -> Iterator[Mutant]:
    for pattern, new in _SWAPS:
        for match in re.finditer(pattern, solution):
            text = match.expand(new)
            answer = solution[: match.start()] + text + solution[match.end() :]
            line = solution[: match.start()].count("\n") + 1
            yield Mutant(
                f"{line}: {match[0].strip()} -> {text.strip()}",
                _MINIMUM * ("minimum_of" in text and "this" not in text) + answer,
            )


def _of_lines(solution: str) -> Iterator[Mutant]:
    """Drop a statement, or exchange it with the next."""
    lines = solution.splitlines(keepends=True)
    whole = [line.strip().endswith(";") and "return" not in line for line in lines]
    for i, line in enumerate(lines):
        if not whole[i]:
            continue
        word = line.strip()[:40]
        yield Mutant(f"{i + 1}: without {word}", "".join([*lines[:i], *lines[i + 1 :]]))
        if i + 1 < len(lines) and whole[i + 1]:
            moved = [*lines[:i], lines[i + 1], line, *lines[i + 2 :]]
            yield Mutant(f"{i + 1}: {word} comes later", "".join(moved))


_OPERATORS = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add}
_CALLS = {"maximum": "minimum", "max": "min", "sum": "max", "exp2": "exp"}


def _of_tree(solution: str) -> Iterator[Mutant]:
    tree = ast.parse(solution)
    for i, node in enumerate(ast.walk(tree)):
        for what, change in _changes(node):
            other = copy.deepcopy(tree)
            change(list(ast.walk(other))[i])
            yield Mutant(f"{getattr(node, 'lineno', 0)}: {what}", ast.unparse(other))


def _changes(node: ast.AST) -> Iterator[tuple]:
    """Return what may be changed in a node, and the function that does it."""
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        new = _OPERATORS[type(node.op)]
        yield f"{new.__name__} for {type(node.op).__name__}", lambda n: setattr(n, "op", new())
        yield (
            "left operand alone",
            lambda n: n.__dict__.update(left=n.left, right=ast.Constant(1.0)),
        )
        yield "operands exchanged", lambda n: n.__dict__.update(left=n.right, right=n.left)
    if isinstance(node, ast.Attribute) and node.attr in _CALLS:
        yield f"{_CALLS[node.attr]} for {node.attr}", lambda n: setattr(n, "attr", _CALLS[n.attr])
    if isinstance(node, ast.Constant) and node.value == 1:
        yield "axis 0", lambda n: setattr(n, "value", 0)
    if isinstance(node, ast.Constant) and node.value == "ieee":
        yield "tf32", lambda n: setattr(n, "value", "tf32")
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in _NAMES:
        yield f"{_NAMES[node.id]} for {node.id}", lambda n: setattr(n, "id", _NAMES[n.id])
    if isinstance(node, ast.FunctionDef):
        for k in range(len(node.body) - 1):
            yield f"without statement {k + 1}", lambda n, k=k: n.body.pop(k)


_NAMES = {"m_new": "b_m", "b_m": "m_new", "b_l": "b_m", "rescale": "m_new", "b_p": "b_s"}


def _of_words(exercise: Exercise) -> Iterator[Mutant]:
    """Return other numbers near a number, and the other names for a name."""
    if exercise.grader == "planted":
        names = importlib.import_module(f"{exercises.__name__}.graders.planted").PHASES
        yield from (Mutant(name, name) for name in names if name != exercise.solution)
        return
    parts = [int(part) for part in exercise.solution.split(",")]
    for i, part in enumerate(parts):
        for other in {part + 1, part - 1, part * 2, part // 2, part + 32, 0, part * 4} - {part}:
            answer = ", ".join(map(str, [*parts[:i], other, *parts[i + 1 :]]))
            yield Mutant(f"{other} for {part}", answer)


def accepted(exercise: Exercise, answer: str) -> bool:
    """Return whether a grader accepts an answer: `check` without its words."""
    grader = importlib.import_module(f"{exercises.__name__}.graders.{exercise.grader}")
    try:
        results = grader.run(exercise, answer)
    except (HostKernelError, ValueError):
        return False
    of_compiled = getattr(grader, "judge_compiled", lambda _: iter(()))
    return next(iter(grader.judge(exercise, results)), None) is None and not list(
        of_compiled(answer)
    )


def wrong_answers() -> list[tuple[str, str, str]]:
    """Return assignment, class and answer of the wrong answers on file."""
    on_file = tomllib.loads((HERE / "wrong_answers.toml").read_text(encoding="utf-8"))
    found = []
    for name, answers in on_file.items():
        for given in answers:
            answer = given.get("source", exercises.get(name).solution)
            for old, new in given.get("replace", ()):
                if old not in answer:
                    raise ValueError(f"replace = {old!r} is not in the solution of {name}")
                answer = answer.replace(old, new)
            found.append((name, given["class"], answer))
    return found


def survivors() -> dict[str, dict[str, str]]:
    """Return assignment -> mutant -> why it may be accepted."""
    return tomllib.loads((HERE / "survivors.toml").read_text(encoding="utf-8"))

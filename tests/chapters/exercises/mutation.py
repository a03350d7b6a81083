"""Mutates the solutions of the assignments: operators, constants, order, lines and types.

A mutant of an answer in C++ changes one place of its text, one in Triton changes one node of its
tree, and a number is another number. Mutants that a grader accepts are named in `survivors.toml`
with the reason. What came of all is in `mutants.json`, which this writes again:

    python -m tests.chapters.exercises.mutation rescale
"""

import ast
import copy
import importlib
import importlib.util
import json
import random
import re
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from book.solutions import solution
from labkernels.chapters import exercises
from labkernels.chapters.exercises import Exercise
from labkernels.chapters.exercises.report import refused
from labkernels.cuda.compiler import cache
from labkernels.cuda.host.build import HostKernelError

LEAST = 20  # mutants of an assignment that change behaviour
_FILE = Path(__file__).with_name("mutants.json")
RECORD = json.loads(_FILE.read_text()) if _FILE.exists() else {}
NAMED = tomllib.loads(Path(__file__).with_name("survivors.toml").read_text(encoding="utf-8"))
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
# Words, constants and operators, and what takes their place.
_SWAPS = (
    *(("i64", "int"), ("f16", "bf16"), ("true", "false"), ("maximum", "minimum_of")),
    *(("minus_infinity", "lowest_score"), ("lowest_score", "minus_infinity")),
    *(("least", "greatest_of"), ("sync_block", "sync_warp"), ("sync_warp", "sync_block")),
    *(("ex2_approx", "nothing"), ("fma_rn", "sum_of")),
)
_PATTERNS = (
    *((rf"\b{old}\b", new) for old, new in _SWAPS),
    (r"(\d\.\d+)f", r"(\1f * 1.00001f)"),
    (r"\+\+(\w+)", r"\1 += 2"),
    (r" \? (.+?) : (.+?)(?=[;,)])", r" ? \2 : \1"),
    (r"(?<=return )([^;{]+)(?=;)", r"0 * (\1)"),
    (r"(?<=return )([^;{]+)(?=;)", r"(\1) + 1"),
)
_OPERATOR = re.compile(r"(?<=[\w)\]] )[-+*/%&^<>](?= [\w(-])|>=|==")
_OTHERS = {"+": "-*", "-": "+*", "*": "+/", "/": "*%", "%": "/&", "&": "|^+", "^": "+|&"}
_OTHERS |= {"<": [">", "<="], ">": ["<", ">="], ">=": ["<", ">"], "==": ["!=", "<="]}
_NUMBER = re.compile(r"(?<![\w.])\d+(?![\w.])")
_WORDS = "auto|const|constexpr|else|float|for|if|int|return|struct|true|false|typename|i64|u32"
_VARIABLE = re.compile(rf"(?<![\w:])(?!(?:{_WORDS})\b)[a-z]\w*(?![\w(<:])")
_HELPERS = {
    "minimum_of": "LAB_DEVICE float minimum_of(float a, float b) { return a < b ? a : b; }\n",
    "greatest_of": "LAB_DEVICE int greatest_of(int a, int b) { return a < b ? b : a; }\n",
    "nothing": "LAB_DEVICE float nothing(float x) { return x; }\n",
    "sum_of": "LAB_DEVICE float sum_of(float a, float b, float c) { return a + b + c; }\n",
}


@dataclass(frozen=True)
class Mutant:
    """A changed solution: what was changed where, and the answer."""

    what: str
    answer: str


def mutants(exercise: Exercise) -> Iterator[Mutant]:
    """Yield the mutants of a solution, in an order drawn by the assignment's number.

    Behind those with one change come those with two, of which a short solution needs some.
    """
    right = solution(exercise.name)
    if exercise.place[0]:
        right = _COMMENT.sub("", right)
    rng, seen = random.Random(exercise.number), {right}
    once = _shuffled(exercise, right, rng, seen)
    yield from once
    for one in once:
        for two in _shuffled(exercise, one.answer, rng, seen):
            yield Mutant(f"{one.what}; {two.what}", two.answer)


def _shuffled(exercise: Exercise, source: str, rng: random.Random, seen: set) -> list[Mutant]:
    """Return the mutants with one change that were not seen."""
    if exercise.grader == "triton":
        found = list(_of_tree(source))
    elif exercise.place[0]:
        found = [*_of_text(source), *_of_names(source, rng), *_of_lines(source)]
    else:
        found = list(_of_words(exercise, source))
    new = list({m.answer: m for m in found if m.answer not in seen}.values())
    seen.update(mutant.answer for mutant in new)
    rng.shuffle(new)
    return new


def _of_text(right: str) -> Iterator[Mutant]:
    for pattern, new in _PATTERNS:
        for match in re.finditer(pattern, right):
            yield _changed(right, match, match.expand(new))
    for match in _OPERATOR.finditer(right):
        for other in _OTHERS[match[0]]:
            yield _changed(right, match, other)
    for match in _NUMBER.finditer(right):
        number = int(match[0])
        for other in sorted({number + 1, abs(number - 1), 2 * number} - {number}):
            yield _changed(right, match, str(other))


def _of_names(right: str, rng: random.Random) -> Iterator[Mutant]:
    """Put another variable, or 1, in the place of a variable."""
    found = list(_VARIABLE.finditer(right))
    names = sorted({match[0] for match in found})
    for match in found:
        others = [name for name in names if name != match[0]]
        for other in [*rng.sample(others, min(2, len(others))), "1"]:
            yield _changed(right, match, other)


def _changed(right: str, match: re.Match, text: str) -> Mutant:
    before = right[: match.start()]
    answer = before + text + right[match.end() :]
    at = f"{before.count(chr(10)) + 1}.{len(before) - before.rfind(chr(10))}"
    return Mutant(f"{at}: {match[0].strip()} -> {text.strip()}", _HELPERS.get(text, "") + answer)


def _of_lines(right: str) -> Iterator[Mutant]:
    """Drop a statement, or exchange it with the next."""
    lines = right.splitlines(keepends=True)
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


def _of_tree(right: str) -> Iterator[Mutant]:
    tree = ast.parse(right)
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
    if isinstance(node, ast.Attribute) and node.attr in _CALLS:
        yield f"{_CALLS[node.attr]} for {node.attr}", lambda n: setattr(n, "attr", _CALLS[n.attr])
    if isinstance(node, ast.Constant) and node.value == 0:
        yield "axis 1", lambda n: setattr(n, "value", 1)
    if isinstance(node, ast.Constant) and node.value == "ieee":
        yield "tf32", lambda n: setattr(n, "value", "tf32")
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in _NAMES:
        yield f"{_NAMES[node.id]} for {node.id}", lambda n: setattr(n, "id", _NAMES[n.id])
    if isinstance(node, ast.FunctionDef):
        for k in range(len(node.body) - 1):
            yield f"without statement {k + 1}", lambda n, k=k: n.body.pop(k)


_NAMES = {"m_new": "b_m", "b_m": "m_new", "b_l": "b_m", "rescale": "m_new", "b_p": "b_s"}


def _of_words(exercise: Exercise, right: str) -> Iterator[Mutant]:
    """Return other numbers near a number, and the other names for a name."""
    if exercise.grader == "planted":
        names = importlib.import_module(f"{exercises.__name__}.graders.planted").PHASES
        yield from (Mutant(name, name) for name in names)
        return
    parts = [int(part) for part in right.split(",")]
    for i, part in enumerate(parts):
        for other in {part + 1, part - 1, part * 2, part // 2, part + 32, 0, part * 4} - {part}:
            answer = ", ".join(map(str, [*parts[:i], other, *parts[i + 1 :]]))
            yield Mutant(f"{other} for {part}", answer)


def accepted(exercise: Exercise, answer: str) -> bool | None:
    """Return whether a grader accepts an answer, None if it does not compile.

    This is `check` without its words.
    """
    grader = importlib.import_module(f"{exercises.__name__}.graders.{exercise.grader}")
    if exercise.place[0] and refused(answer):
        return False
    try:
        results = grader.run(exercise, answer)
    except (HostKernelError, ValueError) as error:
        return None if "does not compile" in str(error) else False
    if next(iter(grader.judge(exercise, results)), None) is not None:
        return False
    of_compiled = getattr(grader, "judge_compiled", lambda *_: iter(()))
    return not list(of_compiled(exercise, answer))


def judged(exercise: Exercise) -> dict:
    """Return what came of the first mutants that compile, until 20 have changed behaviour.

    of: what they were made from. judged: how many. accepted: what the accepted ones change.
    """
    count, accepts, same = 0, [], 0
    for mutant in mutants(exercise):
        if count - same == LEAST:
            break
        if (passes := accepted(exercise, mutant.answer)) is None:
            continue
        count += 1
        if passes:
            accepts.append(mutant.what)
            same += is_same(exercise.name, mutant.what)
    return {"of": made_from(exercise), "judged": count, "accepted": accepts}


def is_same(name: str, what: str) -> bool:
    """Return whether a mutant is known to do what the solution does."""
    return NAMED.get(name, {}).get(what, "").startswith("same: ")


def made_from(exercise: Exercise) -> str:
    """Return a hash of the solution, of this file, and of the grader with what it is made of."""
    grader = importlib.import_module(f"{exercises.__name__}.graders.{exercise.grader}")
    names = {
        getattr(x, "__module__", None) or getattr(x, "__name__", "") for x in vars(grader).values()
    }
    rooms = tuple(f"labkernels.chapters.{room}" for room in ("exercises.graders", "primers"))
    used = {__spec__.name, grader.__name__, *(n for n in names if str(n).startswith(rooms))}
    texts = [Path(importlib.util.find_spec(name).origin).read_text() for name in sorted(used)]
    parts = [solution(exercise.name), exercise.adapter, *map(ast.dump, map(ast.parse, texts))]
    return cache.content_key(*parts)[:8]


def main(names: list[str]) -> None:
    """Judge the mutants of these assignments, or of all, and record what came of them."""
    for name in names or exercises.names():
        RECORD[name] = judged(exercises.get(name))
        print(name, RECORD[name], flush=True)
        ordered = {name: RECORD[name] for name in exercises.names() if name in RECORD}
        _FILE.write_text(json.dumps(ordered, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])

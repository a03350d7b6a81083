"""An assignment: its task, starter and hints, and the usual mistakes.

Its solution is in `book/solutions`, for teachers.
"""

import functools
import tomllib
from dataclasses import dataclass
from pathlib import Path

from labkernels.chapters.exercises.overlay import declaration, region
from labkernels.chapters.exercises.report import wrapped

_FOLDER = Path(__file__).with_name("assignments")


@dataclass(frozen=True)
class Mistake:
    """A usual wrong answer, and the message for its author.

    fault: what the CPU machine finds, such as "race"; "" if only the result is wrong. where: words
    of the machine's message that tell this mistake from others with the same fault.
    """

    source: str
    says: str
    fault: str = ""
    where: str = ""


@dataclass(frozen=True)
class Exercise:
    """One assignment.

    Units: minutes is the time that the assignment takes. difficulty goes from 1 to 3. grader: the
    module of `graders` that runs an answer. place: the kernel and region that the answer replaces.
    adapter: lines behind the answer, where the kernel does not call the answer itself.
    declarations: the structs that the task speaks of, as the kernels declare them.
    """

    name: str
    number: int
    title: str
    grader: str
    minutes: int
    difficulty: int
    task: str
    starter: str
    unfinished: str
    hints: tuple[str, ...]
    mistakes: tuple[Mistake, ...]
    place: tuple[str, str] = ("", "")
    adapter: str = ""
    declarations: str = ""

    def hint(self, number: int) -> str:
        """Return a hint: the first points at the place, and the last nearly gives the answer.

        Raises: ValueError if there is no hint of that number.
        """
        if not 1 <= number <= len(self.hints):
            raise ValueError(f"number = {number}, allowed: 1 to {len(self.hints)}")
        return self.hints[number - 1]

    def __repr__(self) -> str:
        about = f"{self.title} (assignment {self.number}, {self.minutes} minutes, "
        about += f"difficulty {self.difficulty} of 3)"
        task = "\n".join(map(wrapped, self.task.strip().splitlines()))
        shown = f"Declarations:\n\n{self.declarations}\n\n" if self.declarations else ""
        return f"{about}\n\n{task}\n\n{shown}Starter:\n\n{self.starter.rstrip()}"


@functools.cache
def _all() -> dict[str, Exercise]:
    found = [_read(path) for path in _FOLDER.glob("*.toml")]
    return {exercise.name: exercise for exercise in sorted(found, key=lambda e: e.number)}


def _read(path: Path) -> Exercise:
    given = tomllib.loads(path.read_text(encoding="utf-8"))
    mistakes = tuple(_mistake(given, **m) for m in given.pop("mistake"))
    lists = {name: tuple(given.pop(name)) for name in ("hints", "place") if name in given}
    declares = given.pop("declares", {})
    shown = [declaration(header, name) for header in declares for name in declares[header]]
    return Exercise(
        name=path.stem, mistakes=mistakes, declarations="\n\n".join(shown), **lists, **given
    )


def _mistake(
    given: dict, says: str, source: str = "", edit: tuple = (), replace: tuple = (), **finds: str
) -> Mistake:
    """Return a mistake whose source is given, is the starter, edited, or the kernel's, replaced."""
    if edit or replace:
        source = given["starter"] if edit else region(*given["place"])
    for old, new in (*edit, *replace):
        if source.count(old) != 1:
            raise ValueError(f"replace = {old!r}, found {source.count(old)} times, allowed: 1")
        source = source.replace(old, new)
    return Mistake(source, says, **finds)


def names() -> tuple[str, ...]:
    """Return the assignments in the order in which the book gives them."""
    return tuple(_all())


def get(name: str) -> Exercise:
    """Return the assignment of that name.

    Raises: ValueError listing the names if there is none.
    """
    if name not in _all():
        raise ValueError(f"name = {name!r}, allowed: {', '.join(_all())}")
    return _all()[name]

"""The exercises of the chapters: what a right answer is, and what a usual wrong one overlooks."""

import functools
import tomllib
from dataclasses import dataclass
from pathlib import Path

from labkernels.chapters.exercises.report import Report

_FILE = Path(__file__).with_name("questions.toml")
_SLACK = 1e-9  # absolute: a computed 81.25 is 81.25


@dataclass(frozen=True)
class Question:
    """An exercise whose answer is some numbers or words.

    asks: what an answer consists of. right: a number, a word, or a pair of bounds for each part.
    within: the relative distance that a number may have. mistakes: wrong answers and what to say.
    text: the question itself, if no exercise of a chapter asks it.
    """

    name: str
    asks: str
    right: tuple
    hint: str
    mistakes: tuple[tuple[tuple, str], ...]
    within: float = 0.0
    text: str = ""

    def judge(self, answer: object) -> Report:
        """Say whether the answer is right; if it is not, what it overlooks, or a hint.

        Raises: ValueError if the answer does not consist of what the question asks for.
        """
        given = self._parts(answer)
        if self._matches(self.right, given):
            return Report(True, ())
        for wrong, says in self.mistakes:
            if self._matches(wrong, given):
                return Report(False, (says,))
        return Report(False, (*self._where(given), self.hint))

    def _parts(self, answer: object) -> tuple:
        several = hasattr(answer, "__iter__") and not isinstance(answer, str)
        given = tuple(answer) if several else (answer,)  # type: ignore[call-overload]
        kinds = [isinstance(part, str) for part in self.right]
        try:
            if [isinstance(part, str) for part in given] != kinds:
                raise TypeError
            return tuple(p.strip().lower() if isinstance(p, str) else float(p) for p in given)
        except TypeError:
            raise ValueError(f"answer = {answer!r}, allowed: {self.asks}") from None

    def _matches(self, parts: tuple, given: tuple) -> bool:
        return all(self._fits(part, value) for part, value in zip(parts, given, strict=True))

    def _fits(self, part: object, given: object) -> bool:
        if isinstance(part, str):
            return part == given
        low, high = self.bounds(part)
        return low <= given <= high  # type: ignore[operator]

    def bounds(self, part) -> tuple[float, float]:
        """Return the bounds within which a number counts as this part of an answer."""
        slack = self.within * abs(part) if not isinstance(part, list) else 0.0
        low, high = part if isinstance(part, list) else (part - slack, part + slack)
        return low - _SLACK, high + _SLACK

    def _where(self, given: tuple) -> list[str]:
        """Return which parts are wrong, and in which direction."""
        lines = []
        for i, (part, value) in enumerate(zip(self.right, given, strict=True), 1):
            if self._fits(part, value):
                continue
            which = f"Part {i}, {value!r}," if len(given) > 1 else f"{value!r}"
            if isinstance(part, str):
                lines.append(f"{which} is not right.")
            else:
                large = value > self.bounds(part)[1]
                lines.append(f"{which} is too {'large' if large else 'small'}.")
        return lines


@functools.cache
def questions() -> dict[str, Question]:
    """Return all questions by the label of their exercise."""
    found = tomllib.loads(_FILE.read_text(encoding="utf-8"))
    return {name: _question(name, **given) for name, given in found.items()}


def _question(name: str, right: list, mistake: list, **given) -> Question:
    mistakes = tuple((tuple(each["answer"]), each["says"]) for each in mistake)
    return Question(name, right=tuple(right), mistakes=mistakes, **given)

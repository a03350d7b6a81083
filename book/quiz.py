"""Quizzes of ten questions per week, whose numbers a seed draws.

python book/quiz.py WEEK [--seed N] [--key]    prints one as Markdown, or its answers
"""

import argparse
import math
import random
import tomllib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from labkernels import formats, hardware
from labkernels.numerics import rounding

FILE = Path(__file__).with_name("teaching") / "quizzes.toml"
KNOWN = {
    "math": math,
    "np": np,
    "formats": formats,
    "hardware": hardware,
    "rounding": rounding,
}


@dataclass(frozen=True)
class Question:
    """A question with its numbers. within: the relative distance that a number may have."""

    ask: str
    answer: float | str
    within: float
    because: str

    def fits(self) -> str:
        """Returns a condition on `answer`, in Python."""
        if isinstance(self.answer, str):
            return f"str(answer).strip().lower() == {self.answer!r}"
        within = self.within * abs(self.answer)
        return f"abs(float(answer) - {self.answer!r}) <= {within!r}"


def weeks() -> list[dict]:
    """Returns the weeks of quizzes.toml."""
    return tomllib.loads(FILE.read_text(encoding="utf-8"))["week"]


def drawn(week: int, seed: int) -> list[Question]:
    """Returns the questions of a week, counted from 1; a seed always draws the same ones."""
    found = []
    for i, given in enumerate(weeks()[week - 1]["question"]):
        rng = random.Random(f"{week} {i} {seed}")
        found.append(question(given, {name: rng.choice(of) for name, of in given["vary"].items()}))
    return found


def question(given: dict, values: dict) -> Question:
    """Returns a question with these values of its names."""
    answer = eval(given["answer"], KNOWN | values)
    answer = answer if isinstance(answer, str) else float(answer)
    ask, because = given["ask"].format(**values), given["because"].format(**values)
    return Question(ask, answer, given.get("within", 1e-3), because)


def main() -> None:
    parser = argparse.ArgumentParser(description="Prints a quiz as Markdown.")
    parser.add_argument("week", type=int, choices=range(1, len(weeks()) + 1))
    parser.add_argument("--seed", type=int, default=0, help="draws the numbers")
    parser.add_argument("--key", action="store_true", help="print the answers, too")
    options = parser.parse_args()
    print(f"# Week {options.week}: {weeks()[options.week - 1]['title']}\n")
    for i, each in enumerate(drawn(options.week, options.seed), 1):
        print(f"{i}. {each.ask}")
        if options.key:
            said = each.answer if isinstance(each.answer, str) else f"{each.answer:.6g}"
            print(f"   **{said}.** {each.because}")


if __name__ == "__main__":
    main()

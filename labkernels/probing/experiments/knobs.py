"""Knobs: the main calls again with each further value of the function's keywords.

Isolates: the knob; the sheet itself is made with each knob's first value. Calls: 3 a value, and a
case's readings where one is wrong. Read: bits equal or not; a defect is named with the knob.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from labkernels.probing.case import Case
from labkernels.probing.experiments.inputs import against
from labkernels.probing.layouts import Refused
from labkernels.probing.observed import inputs
from labkernels.probing.report import Datasheet, Fact


def turned(c: Case, knobs: Mapping[str, Sequence[Any]], sheet: Datasheet):
    """Yield (name and value, the case with it, a wrong call or None) and add facts to the sheet."""
    first = c.call(c.q, c.k, c.v)
    _, _, (_, q, k), _ = inputs(c)
    for name, values in knobs.items():
        words = []
        for value in list(values)[1:]:
            said = f"{name}={value}"
            one = Case(
                c.kernel, c.s, c.model, f"{c.label}, {said}", c.seed, {**c.knobs, name: value}
            )
            one.bend = c.bend
            try:
                found = [against(one, said, c.q, c.k, c.v), against(one, said, q, k, c.v)]
            except Refused as why:
                sheet.refused.append(f"{said}: {why}")
                continue
            same = np.array_equal(found[0].answer.out, first, equal_nan=True)
            words.append(f"{value} {'the same' if same else 'other'} bits")
            bad = next((x for x in found if x.rows.any()), None)
            yield said, one, bad
        fact = Fact(f"{name}, {c.label}", f"{values[0]}; {', '.join(words)}", "two calls each", 0)
        sheet.facts[fact.name] = replace(fact, calls=2 * len(words))

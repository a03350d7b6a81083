"""Knobs: the main calls again with each further value of the function's keywords.

Isolates: the knob; the sheet itself is made with each knob's first value. Calls: 3 a value, and a
case's readings where one is wrong. Read: bits equal or not; a defect is named with the knob.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from labkernels.probing.case import Case
from labkernels.probing.experiments.inputs import Compared, against
from labkernels.probing.experiments.repeats import other_bits
from labkernels.probing.observed import inputs
from labkernels.probing.report import Fact


def turned(c: Case, knobs: Mapping[str, Sequence[Any]], p):
    """Yield (name and value, the case with it, its wrong call), and add facts to the probe p."""
    first = c.call(c.q, c.k, c.v)
    _, _, (_, q, k), _ = inputs(c)
    for name, (value, *others) in knobs.items():
        words = []
        for other in others:
            said, how = f"{name}={other}", {**c.knobs, name: other}
            one = Case(c.kernel, c.s, c.model, f"{c.label}, {said}", c.seed, how, bend=c.bend)
            found = p.run(said, _calls, one, said, (c.q, c.k, c.v), (q, k, c.v))
            if found is not None:
                same = not other_bits(found[0].out, first).any()
                words.append(f"{other} {'the same' if same else 'other'} bits")
                yield from [(said, one, x) for x in found if x.rows.any()][:1]
        name, said = f"{name}, {c.label}", f"{value}; {', '.join(words)}"
        p.add([Fact(name, said, "two calls each", 2 * len(words))])


def _calls(c: Case, name: str, *tensors) -> list[Compared]:
    return [against(c, name, *x) for x in tensors]

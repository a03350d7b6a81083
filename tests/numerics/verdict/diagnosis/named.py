"""Cases of a bug, a shape and what the call asks for, and the name that the verdict must give."""

import functools
from dataclasses import replace

from labkernels.measure.strangers import inputs, runs, wrong


@functools.cache
def call_of(shape, seed):
    """Return a call on normal inputs in fp32."""
    return inputs.call("normal", shape, "fp32", seed)


def require_name(name, case, seed):
    """Judge the bug of a case: its first name must begin as given, and leave rounding alone."""
    bug, shape, asked = case
    call = call_of(shape, seed)
    call = call if asked is None else replace(call, asked=asked)
    found = runs.judged(call, wrong.run(bug, call))
    assert found.matches, found.summary()
    assert found.matches[0].name.startswith(name), found.summary()
    assert found.matches[0].rms < 1.5

"""Shapes and families of inputs of the sixteenth held-out set."""

from collections.abc import Callable

from labkernels.measure.strangers.inputs import Shape

SHAPES = (Shape(2, 8, 2, 1, 389, 64),)  # a decode step, four heads a group
FAMILIES: dict[str, Callable] = {}

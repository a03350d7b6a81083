"""Shapes and families of inputs of the fourteenth held-out set."""

from collections.abc import Callable

from labkernels.measure.strangers.inputs import Shape

SHAPES = (Shape(2, 12, 4, 1, 383, 80),)
FAMILIES: dict[str, Callable] = {}

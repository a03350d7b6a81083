"""Shapes and families of inputs of the fifteenth held-out set."""

from collections.abc import Callable

from labkernels.measure.strangers.inputs import Shape

SHAPES = (Shape(2, 10, 2, 1, 421, 64),)  # a decode step, five heads a group
FAMILIES: dict[str, Callable] = {}

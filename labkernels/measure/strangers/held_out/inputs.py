"""Shapes and families of inputs of the thirteenth held-out set."""

from collections.abc import Callable

from labkernels.measure.strangers.inputs import Shape

SHAPES = (Shape(2, 10, 2, 1, 347, 96),)
FAMILIES: dict[str, Callable] = {}

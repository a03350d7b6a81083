"""Shapes and families of inputs of the twelfth held-out set."""

from collections.abc import Callable

from labkernels.measure.strangers.inputs import Shape

SHAPES = (Shape(2, 6, 3, 1, 331, 64),)
FAMILIES: dict[str, Callable] = {}

"""Names for a bug: which mistake explains the errors of an output."""

from collections.abc import Callable, Iterator
from typing import TypeAlias

from labkernels.numerics.arrays import Array

# Mistakes that one row may show: their name, a function that puts the place of mistake i into
# words, and the row's outputs with each mistake. Shapes: [mistakes, Dv].
Mistakes: TypeAlias = Iterator[tuple[str | Callable[..., str], Callable[..., str], Array]]

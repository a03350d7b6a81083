"""Names for a bug: which mistake explains the errors of an output."""

from collections.abc import Callable, Iterator
from typing import TypeAlias

from labkernels.numerics.arrays import Array

# Mistakes that one row may show: what they are, the words for the one of a number, and the row's
# outputs with each. Shapes: [mistakes, Dv].
Mistakes: TypeAlias = Iterator[tuple[str | Callable[..., str], Callable[..., str], Array]]

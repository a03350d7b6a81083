"""The four figures of every bench: budget, timing, occupancy and errors."""

from labkernels.plots.bench.budget import budget
from labkernels.plots.bench.errors import MOST_ELEMENTS, errors
from labkernels.plots.bench.occupancy import occupancy
from labkernels.plots.bench.timing import timing

__all__ = ["MOST_ELEMENTS", "budget", "errors", "occupancy", "timing"]

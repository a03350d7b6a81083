"""The bench of every chapter: workloads run here on all kernels, with budgets, times and errors."""

from labkernels.bench.bench import Bench
from labkernels.bench.listing import source
from labkernels.bench.log import Log

__all__ = ["Bench", "Log", "source"]

"""Facts about GPUs, each with its unit, its source and its date."""

from labkernels.hardware.gpus import ARCHS, GPUS, Fact, Gpu, by_arch, fact, gpu

__all__ = ["ARCHS", "GPUS", "Fact", "Gpu", "by_arch", "fact", "gpu"]

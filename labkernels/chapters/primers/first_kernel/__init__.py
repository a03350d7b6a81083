"""A first kernel in standard CUDA: launched on the CPU machine or a GPU, counted, and checked."""

from labkernels.chapters.primers.first_kernel.standard_cuda import counted, launch
from labkernels.chapters.primers.first_kernel.steps import check

__all__ = ["check", "counted", "launch"]

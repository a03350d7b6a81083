"""Kernels with one mistake each, of kinds that occurred in real projects."""

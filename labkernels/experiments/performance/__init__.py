"""Experiments on the time of kernels, and on what the time depends on."""

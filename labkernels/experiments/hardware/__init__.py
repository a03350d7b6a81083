"""Experiments on the arithmetic of a GPU, bit for bit."""

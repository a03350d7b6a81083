"""Rounding, float64 oracles, bit-exact hardware models, error bounds and error tables.

NumPy and the standard library only. Functions that take a Problem also work on torch tensors, on
their device: see arrays.
"""

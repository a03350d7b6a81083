"""Rounding, float64 oracles, bit-exact hardware models, error bounds and error tables.

NumPy and the standard library only. What takes a Problem also works on torch tensors, where they
lie: see arrays.
"""

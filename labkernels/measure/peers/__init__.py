"""Implementations by other libraries, one file per library, to compare our kernels with."""

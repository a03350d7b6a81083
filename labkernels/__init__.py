"""Attention kernels with their budgets, their errors and their measurements, for reading."""

__version__ = "0.1.0"

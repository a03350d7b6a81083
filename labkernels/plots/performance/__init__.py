"""Figures of times, resources and counters."""

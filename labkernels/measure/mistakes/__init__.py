"""Mistakes of attention, drawn as data: which of them a tolerance accepts."""

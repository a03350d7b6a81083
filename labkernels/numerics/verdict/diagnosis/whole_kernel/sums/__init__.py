"""Mistakes in weights and sums: formats, accumulators, merges."""

"""Mistakes in which keys and values a row reads: ends, runs, orders, sources, weights."""

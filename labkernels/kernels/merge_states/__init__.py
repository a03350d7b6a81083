"""Merges outputs of one attention that were computed over parts of the keys."""

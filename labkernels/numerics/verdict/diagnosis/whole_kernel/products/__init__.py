"""Whole products of mistakes: what is read, by which map, for which part, and what lies beyond.

Most points of a product are wrong. So a product is computed for a few rows along a few directions
of the channels at once, and only what comes nearest there is judged on all rows.
"""

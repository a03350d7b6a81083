"""Figures and tables for the book: a DataFrame in, a matplotlib Figure out; nothing is read.

Whoever calls a function shows the figure, or saves it. Every figure of recorded numbers takes
`origin`, the line that says where and when they were measured.
"""

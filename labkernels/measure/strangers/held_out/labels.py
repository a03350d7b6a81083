"""Patterns of right names, which do not exist yet: all bugs are written before any label."""

from collections import defaultdict

PATTERNS = defaultdict(lambda: "a^")

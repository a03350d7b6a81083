"""The largest error that rounding can cause (bounds), and the expected error (sigma, budget)."""

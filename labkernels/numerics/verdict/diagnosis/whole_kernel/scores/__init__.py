"""Mistakes in the scores: channels, positions, functions of a score, a rule per head."""

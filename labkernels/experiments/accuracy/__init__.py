"""The distance of outputs from the truth, and the verdicts on it."""

"""Figures of errors, budgets of error and verdicts."""

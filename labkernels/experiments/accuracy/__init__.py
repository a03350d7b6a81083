"""Experiments on the errors of outputs, and on the verdicts about them."""

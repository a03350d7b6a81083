"""Judges, which compare outputs and gradients with float64."""

"""Verdicts on tensors from any source: rounding or a bug."""

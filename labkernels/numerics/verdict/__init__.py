"""The verdict on an output: rounding, or a bug."""

"""The time of kernels, and what it depends on."""

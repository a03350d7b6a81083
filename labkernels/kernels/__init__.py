"""The kernels: one folder each, found by `spec.discover`."""

"""The experiments of a probe, one file each: what it isolates, its calls, how the result is read."""

"""The experiments of a probe, a file each: what it isolates, its calls, how they are read."""

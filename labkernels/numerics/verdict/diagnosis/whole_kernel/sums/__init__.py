"""What becomes of weights and sums: formats, accumulators, merges."""

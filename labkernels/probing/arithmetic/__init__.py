"""What a kernel rounds, and how: P, the denominator, rescales, the exponential, sums over keys."""

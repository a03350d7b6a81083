"""Functions that one chapter runs, in a file of its name; the primers' kernels; the exercises."""

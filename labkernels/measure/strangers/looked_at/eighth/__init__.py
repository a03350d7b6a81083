"""The eighth set: masks, reads and sums, by somebody who knew the verdict."""

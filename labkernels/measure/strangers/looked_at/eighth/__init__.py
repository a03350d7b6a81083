"""The eighth set, by a writer who knew the verdict: bugs in masks, reads and sums."""

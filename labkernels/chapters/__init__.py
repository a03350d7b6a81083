"""Functions that only one chapter runs: one file per chapter, with its notebook's name."""

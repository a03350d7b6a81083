"""The fourteenth set, which is held out."""

"""The thirteenth set, which is held out."""

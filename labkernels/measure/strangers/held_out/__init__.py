"""The twelfth set, which is held out."""

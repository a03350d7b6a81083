"""The fourth set that was held out."""

"""The fourth set that was held out and then looked at."""

"""The third set."""

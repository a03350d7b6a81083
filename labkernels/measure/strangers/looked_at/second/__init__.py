"""The second set."""

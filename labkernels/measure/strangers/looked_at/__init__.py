"""Kinds that were held out once, and were looked at one by one since: development, too."""

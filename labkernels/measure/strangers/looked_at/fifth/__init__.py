"""The fifth set that was held out."""

"""Names for a bug: which mistake explains the errors of an output."""

"""The half of the seventh set that was looked at; the other half is held out."""

"""Names that outputs alone show: rows in another place, with others added, or of other memory."""

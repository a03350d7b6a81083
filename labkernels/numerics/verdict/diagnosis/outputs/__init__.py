"""Names that outputs alone show: rows elsewhere, with something added, or from other memory."""

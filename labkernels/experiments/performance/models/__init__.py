"""How models attend: variants of attention, and prefixes that requests share."""

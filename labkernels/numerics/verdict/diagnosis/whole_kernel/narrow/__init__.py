"""Mistakes of tensors that are kept in few bits: blocks with scales, and limits of a scale."""

"""Recorded measurements: schema, CSV store, provenance, targets."""

"""What was measured, and where it comes from: schema, CSV store, provenance, targets."""

"""The search for a kernel's best tile, and recorded searches."""

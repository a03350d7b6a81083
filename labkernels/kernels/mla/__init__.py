"""MLA decode: attention over latent rows, each of which is both key and value."""

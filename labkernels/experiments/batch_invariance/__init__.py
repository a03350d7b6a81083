"""Which bits of a request change with its batch, by library, and whether that was predicted."""

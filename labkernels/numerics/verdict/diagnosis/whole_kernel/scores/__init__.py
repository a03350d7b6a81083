"""What a score becomes: channels, positions, functions of its size, a rule for each head."""

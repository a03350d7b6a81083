"""The arithmetic of a GPU, measured bit for bit."""

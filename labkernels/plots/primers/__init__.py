"""Diagrams that teach: what an SM holds, a tile's steps, and which lane holds which element."""

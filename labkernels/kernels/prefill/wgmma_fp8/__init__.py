"""The kernel that spec.py describes."""

"""The kernel merge_states."""

"""Measurements on a machine: times, peers, errors and resources."""

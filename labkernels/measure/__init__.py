"""What a machine does: times, peers, errors, resources, and what it can run."""

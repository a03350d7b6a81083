"""The ninth held-out set: bugs, inputs and right implementations by somebody outside the lab."""

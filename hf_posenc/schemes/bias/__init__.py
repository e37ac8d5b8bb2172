"""Relative position biases: added to attention scores."""

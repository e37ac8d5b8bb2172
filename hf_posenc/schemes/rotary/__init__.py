"""Rotary position embeddings and the scalings of their frequencies."""

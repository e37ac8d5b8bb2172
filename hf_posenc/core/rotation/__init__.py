"""Rotary embeddings: cosines and sines, their cache, and how they are applied."""

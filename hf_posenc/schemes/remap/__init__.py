"""Remapped distances: keep the distances of a RoPE model within its trained range."""

"""Remapped distances: a RoPE model reads distances it was trained on."""

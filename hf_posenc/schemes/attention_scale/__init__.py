"""Attention temperatures: scores scaled by the number of keys."""

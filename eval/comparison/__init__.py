"""Comparison of several schemes on one model, on the same texts; resumable after an interruption."""

"""Measured numbers as values and on disk: rows, comparisons, the resumable store of finished cells."""

"""The ways to compute attention with positional terms, one file each."""

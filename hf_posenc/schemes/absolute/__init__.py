"""Absolute position codes: added to the token embeddings."""

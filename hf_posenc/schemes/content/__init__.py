"""Relative positions that depend on the content of queries and keys."""

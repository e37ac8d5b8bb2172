"""Relative positions that meet the content of queries and keys."""

"""Attention masks that limit the keys of a query: sliding windows, attention sinks."""

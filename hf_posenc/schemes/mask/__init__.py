"""Attention masks that bound what a query sees: sliding windows, attention sinks."""

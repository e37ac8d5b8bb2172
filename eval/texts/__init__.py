"""Texts to measure on: documents, needles in a haystack, questions, random strings."""

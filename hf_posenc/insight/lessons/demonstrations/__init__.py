"""Lessons, one file each."""

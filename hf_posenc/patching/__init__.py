"""Patch a loaded model and undo it: swap classes, probe the effect, prove it, or roll back."""

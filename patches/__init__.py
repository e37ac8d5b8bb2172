"""Adapters: where each family of models keeps position. One file per family, no mathematics."""

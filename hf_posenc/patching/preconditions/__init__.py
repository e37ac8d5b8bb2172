"""What is refused before a model is touched."""

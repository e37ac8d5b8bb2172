"""The demonstrations, one file a topic."""

"""lm-eval model types for patched models."""

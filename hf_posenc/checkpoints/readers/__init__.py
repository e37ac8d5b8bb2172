"""The rotation that each serving engine computes from a checkpoint's configuration; one file for each engine."""

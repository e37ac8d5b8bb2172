"""Positional schemes, one idea per file; `hf_posenc.schemes.registry` finds them by name and imports them on demand."""

"""Which families of transformers can be patched, and how much of them: surveyed, not listed by hand."""

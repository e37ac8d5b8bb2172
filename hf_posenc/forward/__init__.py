"""One forward pass: what a call of a patched model is given, from the base model down to the kernel."""

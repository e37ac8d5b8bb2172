"""What a patched model writes: the scheme in its config, its model card, the PEFT sidecar."""

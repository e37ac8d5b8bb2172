"""Load, save, export and share patched checkpoints and PEFT adapters."""

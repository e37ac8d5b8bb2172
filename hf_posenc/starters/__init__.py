"""Three small pretrained checkpoints that come with the package, and their loader."""

from hf_posenc.starters.loading import NAMES, load_starter, starter_path

__all__ = ["NAMES", "load_starter", "starter_path"]

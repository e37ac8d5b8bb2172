"""Small models that are able at retrieval within their length, and where they are."""

from hf_posenc.laboratory.loading import NAMES, laboratory_path

__all__ = ["NAMES", "laboratory_path"]

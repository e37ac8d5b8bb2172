"""Digest of a live model: the same digest means the same weights, whatever the model is called.

A file or a checkpoint can change under the same name, so contents are read.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import torch

IGNORED = ("_name_or_path", "transformers_version", "dtype", "torch_dtype")  # configuration keys that change no number


def model_digest(model: Any) -> str:
    """Digest of class, configuration and all weights of a live model, including a PEFT adapter."""
    digest = hashlib.blake2b(digest_size=16)
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    config = {name: value for name, value in base.config.to_dict().items() if name not in IGNORED}
    digest.update(json.dumps([type(base).__name__, config], sort_keys=True, default=str).encode())
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()

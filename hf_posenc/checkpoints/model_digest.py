"""Digests of a loaded model. Equal digests mean equal weights, independent of the model's name.

A checkpoint can change under the same name, so the digest is computed from all values, or from a sample of each tensor.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from hf_posenc.patching.state import base_model_of

IGNORED = ("_name_or_path", "transformers_version", "dtype", "torch_dtype")  # configuration keys that change no number
SAMPLE = 4096
"""Largest number of sampled values of a tensor. A sample is enough, because training changes nearly every value."""
NOT_LOADED = {"posenc", "pooler"}
"""Parts of a base model that a checkpoint may lack. They are then initialised at random."""


def model_digest(model: Any) -> str:
    """Digest of class, configuration and all weights of a loaded model, including a PEFT adapter."""
    digest = hashlib.blake2b(digest_size=16)
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    config = {name: value for name, value in base.config.to_dict().items() if name not in IGNORED}
    digest.update(json.dumps([type(base).__name__, config], sort_keys=True, default=str).encode())
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        for part in plain_parts(tensor):
            digest.update(part.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def sampled_weights_digest(model: Any, *, values: bool = True) -> str:
    """Digest of a base model's weights, in a fraction of a second even for billions of them.

    At most `SAMPLE` evenly spaced values of each tensor are read. Heads, poolers and scheme parameters are left out,
    because they may be newly initialised. Without ``values``, only names, types and shapes count.
    """
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in sorted(base_model_of(model)[0].state_dict().items()):
        if NOT_LOADED & set(name.split(".")):
            continue
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        for part in plain_parts(tensor) if values and not tensor.is_meta else ():
            flat = part.detach().reshape(-1)
            sample = flat[:: max(1, -(-flat.numel() // SAMPLE))].cpu().contiguous()
            digest.update(sample.view(torch.uint8).numpy())
    return digest.hexdigest()


def plain_parts(tensor: Any) -> Iterator[Any]:
    """The tensor itself, or the tensors inside it if it has a wrapper class, such as a quantiser's."""
    if not is_traceable_wrapper_subclass(tensor):
        yield tensor
        return
    names, _ = tensor.__tensor_flatten__()
    for name in names:
        yield from plain_parts(getattr(tensor, name))

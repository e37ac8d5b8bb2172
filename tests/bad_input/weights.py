"""What may be wrong with the weights of a checkpoint."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from hf_posenc import errors

from .config import Change, loaded, unchanged
from .row import NAN, Errors, Row

DAMAGED: Errors = errors.CheckpointMismatch
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
FILES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "cut in its header": lambda data: data[:100],
    "cut in its data": lambda data: data[:-1000],
    "header of 200 MB": lambda data: struct.pack("<Q", 200 << 20) + data[8:],
}


def rewritten(change: Callable[[bytes], bytes], name: str = WEIGHTS) -> Change:
    """A change of the bytes of a file."""
    return lambda folder: (folder / name).write_bytes(change((folder / name).read_bytes()))


def tensors(change: Callable[[dict[str, Tensor]], object]) -> Change:
    """A change of tensors."""

    def act(folder: Path) -> None:
        held = load_file(folder / WEIGHTS)
        change(held)
        save_file(held, folder / WEIGHTS, {"format": "pt"})

    return act


def lacking(name: str) -> Change:
    """A weight is gone."""
    return tensors(lambda held: held.pop(name))


def poison(held: dict[str, Tensor]) -> None:
    """One number is none."""
    held["model.layers.0.self_attn.k_proj.weight"][0, 0] = NAN


def pickled(folder: Path) -> None:
    """Weights as a pickle only."""
    torch.save(load_file(folder / WEIGHTS), folder / "pytorch_model.bin")
    (folder / WEIGHTS).unlink()


def shard_gone(folder: Path) -> None:
    """A shard is missing."""
    sorted(folder.glob("model-*.safetensors"))[0].unlink()


def rows() -> list[Row]:
    """All of them."""
    not_finite = (DAMAGED, errors.WeightsNotFinite)
    return [
        *(
            Row(f"weights {name}", DAMAGED, "cannot be loaded", loaded(rewritten(change)))
            for name, change in FILES.items()
        ),
        Row("NaN under a scheme", not_finite, "finite", loaded(tensors(poison))),
        Row("NaN to be patched", not_finite, "finite", loaded(tensors(poison), "plain", scheme="yarn", factor=2)),
        Row("weight missing", DAMAGED, "q_proj", loaded(lacking("model.layers.1.self_attn.q_proj.weight"))),
        Row("shard missing", DAMAGED, "No such file", loaded(shard_gone, "shards")),
        Row("pickle only", DAMAGED, "safetensors", loaded(pickled)),
        Row("pickle asked for", DAMAGED, "run code", loaded(unchanged, "plain", use_safetensors=False)),
    ]

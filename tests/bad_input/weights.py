"""Rows of bad input: damaged weights of a checkpoint."""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from hf_posenc import errors

from ..small_models import edit_weights
from .config import loaded
from .row import NAN, Change, Errors, Row, bytes_of, unchanged

DAMAGED: Errors = errors.CheckpointMismatch
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
FILES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "cut in its header": lambda data: data[:100],
    "cut in its data": lambda data: data[:-1000],
    "header of 200 MB": lambda data: struct.pack("<Q", 200 << 20) + data[8:],
}


def poison(folder: Path) -> None:
    """One number is none."""
    edit_weights(folder, lambda held: held["model.layers.0.self_attn.k_proj.weight"][0].fill_(NAN))


def lacking(folder: Path) -> None:
    """A weight is gone."""
    edit_weights(folder, lambda held: held.pop("model.layers.1.self_attn.q_proj.weight"))


def table(change: Callable[[Tensor], Tensor]) -> Change:
    """A change of GPT-2's table of positions."""
    name = "transformer.wpe.weight"
    return lambda folder: edit_weights(folder, lambda held: held.update({name: change(held[name])}))


def pipe(folder: Path) -> None:
    """A pipe under the name of the weights: reading it would wait for ever."""
    (folder / WEIGHTS).unlink()
    os.mkfifo(folder / WEIGHTS)


def pickled(folder: Path) -> None:
    """Weights as a pickle only."""
    torch.save(load_file(folder / WEIGHTS), folder / "pytorch_model.bin")
    (folder / WEIGHTS).unlink()


def outside(folder: Path) -> None:
    """An index that leads out of the folder."""
    content = json.loads((folder / INDEX).read_text(encoding="utf-8"))
    content["weight_map"][next(iter(content["weight_map"]))] = "../plain/model.safetensors"
    (folder / INDEX).write_text(json.dumps(content), encoding="utf-8")


def other_generation(folder: Path) -> None:
    """A shard of another model of the same names."""
    first, second = sorted(folder.glob("model-*.safetensors"))[:2]
    shutil.copy(second, first)


def shard_gone(folder: Path) -> None:
    """A shard is missing."""
    sorted(folder.glob("model-*.safetensors"))[0].unlink()


def rows() -> list[Row]:
    """All of them."""
    not_finite = (DAMAGED, errors.WeightsNotFinite)
    return [
        *(
            Row(f"weights {name}", DAMAGED, "cannot be read", loaded(bytes_of(WEIGHTS, change)))
            for name, change in FILES.items()
        ),
        Row("NaN under a scheme", not_finite, "finite", loaded(poison)),
        Row("NaN to be patched", not_finite, "finite", loaded(poison, "plain", scheme="yarn", factor=2)),
        Row("weight missing", DAMAGED, "q_proj", loaded(lacking)),
        Row("a pipe", DAMAGED, "no file", loaded(pipe, "plain")),
        Row("table shorter", DAMAGED, "shape", loaded(table(lambda rows: rows[:8].clone()), "gpt2")),
        Row("shard missing", DAMAGED, "missing", loaded(shard_gone, "shards")),
        Row("shard of others", DAMAGED, "lacks", loaded(other_generation, "shards")),
        Row("index outside", DAMAGED, r"\.\./plain", loaded(outside, "shards")),
        Row("pickle only", DAMAGED, "safetensors", loaded(pickled)),
        Row("pickle asked for", DAMAGED, "run code", loaded(unchanged, "plain", use_safetensors=False)),
    ]

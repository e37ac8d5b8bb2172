"""Rows 54 to 60: what may be wrong with the weights of a checkpoint."""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from hf_posenc import errors

from .config import loaded
from .row import Errors, Row

DAMAGED: Errors = errors.CheckpointMismatch
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"


def header(data: bytes) -> int:
    """Bytes of the header of a safetensors file."""
    return int(struct.unpack("<Q", data[:8])[0])


FILES: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "0 bytes": (lambda data: b"", "header too small"),
    "7 bytes": (lambda data: data[:7], "header too small"),
    "cut in header": (lambda data: data[:100], "invalid header length"),
    "cut in data": (lambda data: data[:-1000], "not fully covered"),
    "trailing bytes": (lambda data: data + b"more", "not fully covered"),
    "header of 2^63": (lambda data: struct.pack("<Q", 2**63) + data[8:], "header too large"),
    "header of 200 MB": (lambda data: struct.pack("<Q", 200 << 20) + data[8:], "header too large"),
    "header no JSON": (lambda data: data[:8] + b"x" * header(data) + data[8 + header(data) :], "invalid JSON"),
    "another format": (lambda data: b"PK\x03\x04" + data, "header too large"),
}


def rewritten(change: Callable[[bytes], bytes], name: str = WEIGHTS) -> Callable[[Path], object]:
    """A change of the bytes of a file."""
    return lambda folder: (folder / name).write_bytes(change((folder / name).read_bytes()))


def tensors(change: Callable[[dict[str, Tensor]], object]) -> Callable[[Path], object]:
    """A change of tensors."""

    def act(folder: Path) -> None:
        held = load_file(folder / WEIGHTS)
        change(held)
        save_file(held, folder / WEIGHTS, {"format": "pt"})

    return act


def instead(make: Callable[[Path], object]) -> Callable[[Path], object]:
    """Something else under the name of the weights."""

    def act(folder: Path) -> None:
        (folder / WEIGHTS).unlink()
        make(folder / WEIGHTS)

    return act


def poison(held: dict[str, Tensor]) -> None:
    """One number is none."""
    held["model.layers.0.self_attn.k_proj.weight"][0, 0] = float("nan")


def table(change: Callable[[Tensor], Tensor]) -> Callable[[Path], object]:
    """A change of GPT-2's table of positions."""
    return tensors(lambda held: held.update({"transformer.wpe.weight": change(held["transformer.wpe.weight"])}))


def pickled(folder: Path) -> None:
    """Weights as a pickle only."""
    torch.save(load_file(folder / WEIGHTS), folder / "pytorch_model.bin")
    (folder / WEIGHTS).unlink()


def index(change: Callable[[dict[str, str]], object]) -> Callable[[Path], object]:
    """A change of the index of shards."""

    def act(folder: Path) -> None:
        content = json.loads((folder / INDEX).read_text(encoding="utf-8"))
        change(content["weight_map"])
        (folder / INDEX).write_text(json.dumps(content), encoding="utf-8")

    return act


def outside(shards: dict[str, str]) -> None:
    """A name that leads out of the folder."""
    shards[next(iter(shards))] = "../plain/model.safetensors"


def other_generation(folder: Path) -> None:
    """A shard of another model of the same names."""
    first, second = sorted(folder.glob("model-*.safetensors"))[:2]
    shutil.copy(second, first)


def rows() -> list[Row]:
    """All of them."""
    found = [Row(54, name, DAMAGED, message, loaded(rewritten(change))) for name, (change, message) in FILES.items()]
    first = lambda folder: sorted(folder.glob("model-*.safetensors"))[0].unlink()  # noqa: E731
    return [
        *found,
        Row(56, "NaN in a patched one", (DAMAGED, errors.WeightsNotFinite), "finite", loaded(tensors(poison))),
        Row(
            56,
            "NaN in a plain one",
            (DAMAGED, errors.WeightsNotFinite),
            "finite",
            loaded(tensors(poison), "plain", scheme="yarn", factor=2),
        ),
        Row(
            57,
            "weight missing",
            DAMAGED,
            "lacks the weight.+q_proj",
            loaded(tensors(lambda held: held.pop("model.layers.1.self_attn.q_proj.weight"))),
        ),
        Row(
            57,
            "embedding missing",
            DAMAGED,
            "lacks the weight",
            loaded(tensors(lambda held: held.pop("model.embed_tokens.weight")), "plain"),
        ),
        Row(54, "a pipe", DAMAGED, "is no file", loaded(instead(os.mkfifo), "plain")),
        Row(54, "a folder", DAMAGED, "is no file", loaded(instead(os.mkdir), "plain")),
        Row(54, "a device", DAMAGED, "is no file", loaded(instead(partial(os.symlink, "/dev/zero")), "plain")),
        Row(58, "table shorter", DAMAGED, "another shape", loaded(table(lambda rows: rows[:8].clone()), "gpt2")),
        Row(58, "table wider", DAMAGED, "another shape", loaded(table(lambda rows: rows.repeat(1, 2)), "gpt2")),
        Row(58, "table of int8", DAMAGED, "int8|integer", loaded(table(lambda rows: rows.to(torch.int8)), "gpt2")),
        Row(59, "shard missing", DAMAGED, "shard.+missing", loaded(first, "shards")),
        Row(59, "shard of others", DAMAGED, "lacks the weight", loaded(other_generation, "shards")),
        Row(59, "index outside", DAMAGED, r"\.\./plain", loaded(index(outside), "shards")),
        Row(
            59, "index of numbers", DAMAGED, "names 7", loaded(index(lambda s: s.update(dict.fromkeys(s, 7))), "shards")
        ),
        Row(59, "index no JSON", DAMAGED, "property name", loaded(rewritten(lambda _: b"{", INDEX), "shards")),
        Row(60, "pickle only", DAMAGED, "safetensors", loaded(pickled)),
        Row(60, "pickle only, plain", DAMAGED, "safetensors", loaded(pickled, "plain")),
        Row(60, "pickle asked for", DAMAGED, "run code", loaded(lambda _: 0, "plain", use_safetensors=False)),
    ]

"""Rows 61 to 66: what may be wrong with the folder of a PEFT adapter."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import hf_posenc
from hf_posenc import errors

from .row import Errors, Row, Scene

ODD: Errors = errors.PeftAdapterMismatch
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
SIDE_CAR, PARAMETERS = "position_scheme.json", "position_scheme.safetensors"


def put_on(change: Callable[[Path], object], **how: Any) -> Callable[[Scene], object]:
    """Load a damaged copy of an adapter."""

    def act(scene: Scene) -> object:
        copy = scene.desk / "adapter"
        shutil.copytree(scene.saved["adapter"], copy)
        change(copy)
        return hf_posenc.load_peft_adapter(scene.model, copy, **how)

    return act


def content(name: str, **changes: Any) -> Callable[[Path], object]:
    """A change of entries of a JSON file, made by somebody who knows of its digest."""

    def change(folder: Path) -> None:
        held = json.loads((folder / name).read_text(encoding="utf-8"))
        held.pop("sha256", None)
        (folder / name).write_text(json.dumps(held | changes), encoding="utf-8")

    return change


def data(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    """A change of the bytes of a file."""
    return lambda folder: (folder / name).write_bytes(change((folder / name).read_bytes()))


def tensors(change: Callable[[dict[str, Tensor]], object]) -> Callable[[Path], object]:
    """A change of the adapter's tensors."""

    def act(folder: Path) -> None:
        held = load_file(folder / WEIGHTS)
        change(held)
        save_file(held, folder / WEIGHTS)

    return act


def halved(held: dict[str, Tensor]) -> None:
    """Every second tensor is gone."""
    for name in sorted(held)[::2]:
        del held[name]


def flipped(data: bytes) -> bytes:
    """One bit of the last byte is another."""
    return data[:-1] + bytes([data[-1] ^ 1])


def rows() -> list[Row]:
    """All of them."""
    right = ("kerple", {})
    changes: list[tuple[int, str, str, Callable[[Path], object]]] = [
        (61, "truncated", "cannot be read", data(CONFIG, lambda held: held[:40])),
        (61, "empty", "cannot be read", data(CONFIG, lambda held: b"")),
        (61, "UTF-16", "cannot be read", data(CONFIG, lambda held: held.decode().encode("utf-16"))),
        (61, "a list", "no JSON object", data(CONFIG, lambda held: b"[]")),
        (61, "key twice", "twice", data(CONFIG, lambda held: held.rstrip()[:-1] + b',"r":2}')),
        (61, "2 MB", "larger", data(CONFIG, lambda held: held + b" " * (2 << 20))),
        (
            61,
            "10,000 deep",
            "nested more than",
            data(CONFIG, lambda held: b'{"a":' + b"[" * 10_000 + b"]" * 10_000 + b"}"),
        ),
        (61, "a folder", "cannot be read", lambda f: ((f / CONFIG).unlink(), (f / CONFIG).mkdir())),
        (61, "gone", "cannot be read", lambda folder: (folder / CONFIG).unlink()),
        (62, "unknown kind", "kind 'WAT'", content(CONFIG, peft_type="WAT", position_scheme_guard=None)),
        (
            62,
            "kind of a number",
            "guard .+ cannot be read: it is",
            content(CONFIG, position_scheme_guard={"peft_type": 7}),
        ),
        (62, "no kind", "kind ''", content(CONFIG, position_scheme_guard={"peft_type": ""})),
        (62, "unknown key", r"'wat', which this PEFT does not know.+Correct", content(CONFIG, wat=1)),
        (62, "misspelt key", "'lora_alhpa'.+Did you mean 'lora_alpha'", content(CONFIG, lora_alhpa=1)),
        (
            62,
            "option of a newer PEFT",
            r"'wat'.+written by peft 99\.1: pip install -U peft",
            content(CONFIG, wat=1, peft_version="99.1"),
        ),
        (
            62,
            "kind of a newer PEFT",
            r"'WAT'.+written by peft 99\.1: pip",
            content(CONFIG, peft_type="WAT", position_scheme_guard=None, peft_version="99.1"),
        ),
        (62, "version of a list", "'wat'.+Correct", content(CONFIG, wat=1, peft_version=[9])),
        (
            62,
            "module to import",
            "module",
            content(CONFIG, auto_mapping={"parent_library": "evil", "base_model_class": "X"}),
        ),
        (62, "mapping of text", "module", content(CONFIG, auto_mapping="evil")),
        (62, "megatron", "module", content(CONFIG, megatron_core="evil")),
        (63, "r", "size mismatch", content(CONFIG, r=4)),
        (63, "r of text", "does not fit.+'str' and 'int'", content(CONFIG, r="2")),
        (63, "r negative", "positive integer.+-2", content(CONFIG, r=-2)),
        (64, "half of the tensors", "lacks", tensors(halved)),
        (64, "no tensors", "lacks", tensors(lambda held: held.clear())),
        (64, "an empty file", "cannot be read", data(WEIGHTS, lambda held: b"")),
        (64, "cut", "cannot be read", data(WEIGHTS, lambda held: held[:-9])),
        (64, "gone", f"no {WEIGHTS}", lambda folder: (folder / WEIGHTS).unlink()),
        (64, "pickle only", "safetensors", lambda f: (f / WEIGHTS).rename(f / "adapter_model.bin")),
        (65, "NaN", "not finite", tensors(lambda held: next(iter(held.values())).fill_(torch.nan))),
        (65, "infinity", "not finite", tensors(lambda held: next(iter(held.values())).fill_(torch.inf))),
        (66, "sidecar gone", "is missing", lambda folder: (folder / SIDE_CAR).unlink()),
        (66, "sidecar truncated", "cannot be read", data(SIDE_CAR, lambda held: held[:30])),
        (
            66,
            "other scheme",
            "alibi",
            content(SIDE_CAR, scheme=[{"name": "alibi", "options": {}}], parameters_sha256=None),
        ),
        (66, "scheme of nobody", "not registered", content(SIDE_CAR, scheme=[{"name": "nobodys", "options": {}}])),
        (66, "other length", "trained 16", content(SIDE_CAR, trained_length=16)),
        (66, "parameters flipped", "describes", data(PARAMETERS, flipped)),
        (66, "parameters gone", "describes", lambda folder: (folder / PARAMETERS).unlink()),
        (66, "digest of another", "describes", content(SIDE_CAR, parameters_sha256="0" * 64)),
        (66, "digest of a number", "describes", content(SIDE_CAR, parameters_sha256=7)),
        (66, "unknown key", "unknown key", content(SIDE_CAR, wat=1)),
    ]
    found = [Row(number, name, ODD, message, put_on(change), patch=right) for number, name, message, change in changes]
    ranks = {"r": {"r": 10**12}, "rank of a layer": {"rank_pattern": {"q_proj": 10**12}}}
    found += [
        Row(63, f"{name} absurd", errors.NoMemory, "rank 1000000000000.+smaller", put_on(content(CONFIG, **change)))
        for name, change in ranks.items()
    ]
    same = lambda folder: None  # noqa: E731
    return [
        *found,
        Row(66, "plain base", ODD, "carries none", put_on(same)),
        Row(66, "base of another scheme", ODD, "kerple.+yarn", put_on(same), patch=("yarn", {"factor": 2})),
        Row(
            66,
            "base of another kind",
            (ODD, errors.TrainingImpossible),
            "[Tt]arget modules|not found",
            put_on(same),
            model_type="gpt2",
            patch=right,
        ),
        Row(66, "patch=yes", errors.WrongKind, "'refuse' or 'apply'", put_on(same, patch="yes")),
        Row(
            61, "no folder", errors.ModelNotFound, "absent", lambda s: hf_posenc.load_peft_adapter(s.model, "./absent")
        ),
        Row(
            61, "a file", errors.ModelNotFound, "file", lambda s: hf_posenc.load_peft_adapter(s.model, s.saved["file"])
        ),
        Row(61, "None", errors.WrongKind, "None", lambda s: hf_posenc.load_peft_adapter(s.model, None)),
        Row(
            61,
            "no model",
            errors.UnsupportedModel,
            "'x'",
            lambda s: hf_posenc.load_peft_adapter("x", s.saved["adapter"]),
        ),
        Row(61, "empty folder", ODD, CONFIG, lambda s: hf_posenc.load_peft_adapter(s.model, s.desk)),
        Row(24, "configuration None", errors.WrongKind, "None", lambda s: hf_posenc.get_peft_model(s.model, None)),
        Row(
            24, "configuration of text", errors.WrongKind, "'r'", lambda s: hf_posenc.get_peft_model(s.model, {"r": 8})
        ),
        Row(24, "model of text", errors.UnsupportedModel, "'x'", lambda s: hf_posenc.get_peft_model("x", None)),
        Row(24, "layers of nobody", errors.TrainingImpossible, "nope", wrapped),
        Row(
            24,
            "save of no PEFT model",
            errors.WrongKind,
            "PEFT",
            lambda s: hf_posenc.save_peft_adapter(s.model, s.folder),
        ),
        Row(
            24,
            "save of a patched model",
            errors.WrongKind,
            "PEFT",
            lambda s: hf_posenc.save_peft_adapter(s.model, s.folder),
            patch=("yarn", {"factor": 2}),
        ),
        Row(24, "save of None", errors.UnsupportedModel, "None", lambda s: hf_posenc.save_peft_adapter(None, s.folder)),
    ]


def wrapped(scene: Scene) -> object:
    """LoRA on layers that are not there."""
    from peft import LoraConfig

    return hf_posenc.get_peft_model(scene.model, LoraConfig(target_modules=["nope"]))

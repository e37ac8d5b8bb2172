"""Rows of bad input: damaged folders of PEFT adapters."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import hf_posenc
from hf_posenc import errors

from ..small_models import edit_weights
from .row import NAN, Act, Change, Errors, Row, Scene, bytes_of, entries, unchanged

ODD: Errors = errors.PeftAdapterMismatch
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
SIDE_CAR, PARAMETERS = "position_scheme.json", "position_scheme.safetensors"


def put_on(change: Change, **how: Any) -> Act:
    """Load a damaged copy of an adapter."""

    def act(scene: Scene) -> object:
        copy = scene.desk / "adapter"
        shutil.copytree(scene.saved["adapter"], copy)
        change(copy)
        return hf_posenc.load_peft_adapter(scene.model, copy, **how)

    return act


def halved(folder: Path) -> None:
    """Remove every second tensor."""
    edit_weights(folder, lambda tensors: [tensors.pop(name) for name in sorted(tensors)[::2]], WEIGHTS)


def poisoned(folder: Path) -> None:
    """Fill one tensor with NaN."""
    edit_weights(folder, lambda tensors: next(iter(tensors.values())).fill_(NAN), WEIGHTS)


CHANGES: list[tuple[str, str, Change]] = [
    ("truncated", "read", bytes_of(CONFIG, lambda content: content[:40])),
    ("unknown kind", "'WAT'", entries(CONFIG, peft_type="WAT", position_scheme_guard=None)),
    ("module to import", "module", entries(CONFIG, megatron_core="evil")),
    ("rank", "size mismatch", entries(CONFIG, r=4)),
    ("half of the tensors", "lacks", halved),
    ("no weights", WEIGHTS, lambda folder: (folder / WEIGHTS).unlink()),
    ("pickle only", "safetensors", lambda folder: (folder / WEIGHTS).rename(folder / "adapter_model.bin")),
    ("NaN", "finite", poisoned),
    ("no sidecar", "missing", lambda folder: (folder / SIDE_CAR).unlink()),
    ("other scheme", "alibi", entries(SIDE_CAR, scheme=[{"name": "alibi", "options": {}}], parameters_sha256=None)),
    ("parameters flipped", "does not match", bytes_of(PARAMETERS, lambda held: held[:-1] + bytes([held[-1] ^ 1]))),
]


def rows() -> list[Row]:
    """All of them."""
    right: tuple[str, dict[str, Any]] = ("kerple", {})
    training = errors.TrainingImpossible
    return [
        *(Row(f"adapter {name}", ODD, key, put_on(change), patch=right) for name, key, change in CHANGES),
        Row("absurd rank", ODD, "not enough memory|allocate", put_on(entries(CONFIG, r=10**12)), patch=right),
        Row("plain base", ODD, "none", put_on(unchanged)),
        Row("base of another scheme", ODD, "kerple.+yarn", put_on(unchanged), patch=("yarn", {"factor": 2})),
        Row("base of another kind", (ODD, training), "modules|not found", put_on(unchanged), "gpt2", right),
    ]

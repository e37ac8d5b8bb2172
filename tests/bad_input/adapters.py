"""What may be wrong with the folder of a PEFT adapter."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

import hf_posenc
from hf_posenc import errors

from .config import Change, unchanged
from .row import NAN, Act, Errors, Row, Scene

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


def content(name: str, **changes: Any) -> Change:
    """A change of entries of a JSON file, made by somebody who knows of its digest."""

    def change(folder: Path) -> None:
        held = json.loads((folder / name).read_text(encoding="utf-8"))
        held.pop("sha256", None)
        (folder / name).write_text(json.dumps(held | changes), encoding="utf-8")

    return change


def data(name: str, change: Callable[[bytes], bytes]) -> Change:
    """A change of the bytes of a file."""
    return lambda folder: (folder / name).write_bytes(change((folder / name).read_bytes()))


def gone(name: str) -> Change:
    """A file is missing."""
    return lambda folder: (folder / name).unlink()


def tensors(change: Callable[[dict[str, Tensor]], object]) -> Change:
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


CHANGES: list[tuple[str, str, Change]] = [
    ("truncated", "read", data(CONFIG, lambda held: held[:40])),
    ("unknown kind", "'WAT'", content(CONFIG, peft_type="WAT", position_scheme_guard=None)),
    ("module to import", "module", content(CONFIG, auto_mapping={"parent_library": "evil", "base_model_class": "X"})),
    ("rank", "size mismatch", content(CONFIG, r=4)),
    ("half of the tensors", "lacks", tensors(halved)),
    ("no weights", WEIGHTS, gone(WEIGHTS)),
    ("pickle only", "safetensors", lambda folder: (folder / WEIGHTS).rename(folder / "adapter_model.bin")),
    ("NaN", "finite", tensors(lambda held: next(iter(held.values())).fill_(NAN))),
    ("no sidecar", "missing", gone(SIDE_CAR)),
    ("other scheme", "alibi", content(SIDE_CAR, scheme=[{"name": "alibi", "options": {}}], parameters_sha256=None)),
    ("parameters flipped", "describes", data(PARAMETERS, lambda held: held[:-1] + bytes([held[-1] ^ 1]))),
]


def rows() -> list[Row]:
    """All of them."""
    right: tuple[str, dict[str, Any]] = ("kerple", {})
    training = errors.TrainingImpossible
    return [
        *(Row(f"adapter {name}", ODD, key, put_on(change), patch=right) for name, key, change in CHANGES),
        Row("absurd rank", ODD, "not enough memory|allocate", put_on(content(CONFIG, r=10**12)), patch=right),
        Row("plain base", ODD, "none", put_on(unchanged)),
        Row("base of another scheme", ODD, "kerple.+yarn", put_on(unchanged), patch=("yarn", {"factor": 2})),
        Row("base of another kind", (ODD, training), "modules|not found", put_on(unchanged), "gpt2", right),
        Row("layers of nobody", training, "nope", nobody),
    ]


def nobody(scene: Scene) -> object:
    """LoRA on layers that are not there."""
    from peft import LoraConfig

    return hf_posenc.get_peft_model(scene.model, LoraConfig(target_modules=["nope"]))

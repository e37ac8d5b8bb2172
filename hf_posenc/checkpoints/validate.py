"""transformers' own errors about a checkpoint, in our words: what happened, and what to do."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from hf_posenc.core.files.json_file import read_object
from hf_posenc.errors import (
    CheckpointMismatch,
    shown,
)
from hf_posenc.patching.stored.config_guard import SCHEME_KEY

CONFIG, MAX_CONFIG_BYTES = "config.json", 1 << 24  # bytes; some list a name for each of 20,000 classes
WEIGHTS, INDEX = "model*.safetensors", "model.safetensors.index.json"
LAYER_COUNT_KEYS = ("num_hidden_layers", "n_layer")
LAYER = re.compile(r"(?:^|\.)(?:layers|layer|h)\.(\d+)\.")
QUANTISED_MARK = b"quantization_config"
DTYPE_NAMES = {"I8": "int8", "U8": "uint8", "I16": "int16", "I32": "int32", "I64": "int64", "BOOL": "truth values"}


def check_layer_count(config: Mapping[str, Any], name: str) -> None:
    """Refuse weights of more layers than the configuration has, which transformers would leave out, or of fewer.

    Raises:
        CheckpointMismatch: the folder ``name`` holds such.
    """
    depth = next((config[key] for key in LAYER_COUNT_KEYS if isinstance(config.get(key), int)), None)
    of_host = (weight for weight, _ in stored_weights(Path(name)) if "posenc" not in weight.split("."))
    numbers = {int(found[1]) for weight in of_host if (found := LAYER.search(weight))}
    if depth is not None and numbers and max(numbers) + 1 != depth:
        raise CheckpointMismatch(
            f"The checkpoint {shown(name)} has weights of {max(numbers) + 1} layers, and its configuration says "
            f"{depth:,}. Correct the number, or pass config= for a part of the model."
        )


def stored_weights(folder: Path) -> Iterator[tuple[str, str]]:
    """Name and kind of every weight in the files of a folder."""
    for file in sorted(folder.glob(WEIGHTS)):
        with safe_open(file, "pt") as held:
            for name in held.keys():  # noqa: SIM118  # no mapping
                yield name, held.get_slice(name).get_dtype()


def check_folder(name: str) -> None:
    """Read what a folder says of itself with more suspicion than transformers does.

    Raises:
        CheckpointMismatch: its configuration is too large or, where it carries a scheme, has a key twice; or its index
            names files elsewhere.
    """
    folder = Path(name)
    try:
        if (folder / CONFIG).is_file():
            check_config_file(folder / CONFIG)
            check_regular_files(folder)
            check_weight_dtypes(folder)
        if (folder / INDEX).is_file():
            shards = read_object(folder / INDEX, MAX_CONFIG_BYTES).get("weight_map")
            names: set[Any] = set(shards.values()) if isinstance(shards, dict) else {None}
            odd = [one for one in names if not isinstance(one, str) or Path(one).name != one]
            if odd:
                raise ValueError(f"its index names {shown(odd[0])}, which is no file beside it")
            lost = sorted(one for one in names if not (folder / one).is_file())
            if lost:
                raise ValueError(f"its shard {lost[0]!r} is missing")
    except (OSError, ValueError, TypeError, SafetensorError) as error:
        raise CheckpointMismatch(
            f"The checkpoint {shown(name)} cannot be read: {error}. Copy or save it again."
        ) from error


def check_regular_files(folder: Path) -> None:
    """Refuse a pipe or a device under the name of weights: to read it never ends."""
    odd = [file.name for file in sorted(folder.glob(WEIGHTS)) if not file.is_file()]
    if odd:
        raise ValueError(f"its {odd[0]!r} is no file")


def check_weight_dtypes(folder: Path) -> None:
    """Refuse whole numbers where weights are expected: transformers would take them as they come."""
    if QUANTISED_MARK in (folder / CONFIG).read_bytes():
        return
    for name, kind in stored_weights(folder):
        if name.endswith((".weight", ".bias")) and not kind.startswith(("F", "BF")):
            raise ValueError(f"its weight {name!r} holds numbers of the kind {kind} ({DTYPE_NAMES.get(kind, 'whole')})")


def check_config_file(file: Path) -> None:
    """Refuse a configuration of absurd size, or that is none; one that carries a scheme is read strictly."""
    if file.stat().st_size > MAX_CONFIG_BYTES:
        raise ValueError(f"its {CONFIG} is larger than {MAX_CONFIG_BYTES} bytes")
    content = file.read_bytes()
    if not content.lstrip().startswith(b"{"):
        raise ValueError(f"its {CONFIG} holds no JSON object")
    if SCHEME_KEY.encode() in content:
        read_object(file, MAX_CONFIG_BYTES)

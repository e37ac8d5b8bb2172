"""Check the files of a checkpoint's folder before transformers reads them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from hf_posenc.core.files.json_file import read_object
from hf_posenc.errors import CheckpointMismatch, shown
from hf_posenc.patching.config_guard import SCHEME_KEY

CONFIG, MAX_CONFIG_BYTES = "config.json", 1 << 24  # bytes; some list a name for each of 20,000 classes
WEIGHTS, INDEX = "model*.safetensors", "model.safetensors.index.json"
LAYER_COUNT_KEYS = ("num_hidden_layers", "n_layer")
LAYER = re.compile(r"(?:^|\.)(?:layers|layer|h)\.(\d+)\.")
QUANTISED_MARK = b"quantization_config"
DTYPE_NAMES = {"I8": "int8", "U8": "uint8", "I16": "int16", "I32": "int32", "I64": "int64", "BOOL": "truth values"}


def check_layer_count(name: str, config: Mapping[str, Any], weights: Iterable[str], *, unread: bool = False) -> None:
    """Refuse a checkpoint whose weights have another number of layers than its configuration.

    transformers would ignore weights of additional layers, and initialise missing ones at random. Some families have
    additional layers that are ignored on purpose. So a number that is too large is refused only for weights that
    transformers itself reports as ``unread``.
    """
    depth = next((config[key] for key in LAYER_COUNT_KEYS if isinstance(config.get(key), int)), None)
    host_weights = (weight for weight in weights if "posenc" not in weight.split("."))
    count = max((int(match[1]) + 1 for weight in host_weights if (match := LAYER.search(weight))), default=0)
    if depth is not None and (count > depth if unread else 0 < count < depth):
        raise CheckpointMismatch(
            f"The checkpoint {shown(name)} has weights of {count} layers, and its configuration says {depth:,}. "
            "Correct the number, or pass config= for a part of the model."
        )


def stored_weights(folder: Path) -> Iterator[tuple[str, str]]:
    """Name and dtype of every weight in the safetensors files of a folder."""
    for file in sorted(folder.glob(WEIGHTS)):
        if not file.is_file():  # reading a pipe or a device would never end
            raise ValueError(f"its {file.name!r} is no file")
        with safe_open(file, "pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118  # it is not a mapping
                yield name, tensors.get_slice(name).get_dtype()


def check_folder(name: str) -> None:
    """Check configuration, index and weight files of a folder more strictly than transformers does.

    Raises:
        CheckpointMismatch: the configuration is too large, or carries a scheme and has a key twice; the index names
            missing files or files in other folders; or weights are integers or not in regular files.
    """
    folder = Path(name)
    try:
        if (folder / CONFIG).is_file():
            check_config_file(folder / CONFIG)
            check_weight_dtypes(folder)
        if (folder / INDEX).is_file():
            shards = read_object(folder / INDEX, MAX_CONFIG_BYTES).get("weight_map")
            names: set[Any] = set(shards.values()) if isinstance(shards, dict) else {None}
            invalid = [name for name in names if not isinstance(name, str) or Path(name).name != name]
            if invalid:
                raise ValueError(f"its index names {shown(invalid[0])}, and the folder has no such file")
            missing = sorted(name for name in names if not (folder / name).is_file())
            if missing:
                raise ValueError(f"its shard {missing[0]!r} is missing")
    except (OSError, ValueError, TypeError, SafetensorError) as error:
        raise CheckpointMismatch(
            f"The checkpoint {shown(name)} cannot be read: {error}. Copy or save it again."
        ) from error


def check_weight_dtypes(folder: Path) -> None:
    """Refuse integer weights in a checkpoint that is not quantised, because transformers would load them unchanged."""
    quantised = QUANTISED_MARK in (folder / CONFIG).read_bytes()
    for name, dtype in stored_weights(folder):
        if not quantised and name.endswith((".weight", ".bias")) and not dtype.startswith(("F", "BF")):
            raise ValueError(f"its weight {name!r} has the dtype {dtype} ({DTYPE_NAMES.get(dtype, 'integers')})")


def check_config_file(file: Path) -> None:
    """Refuse a configuration that is too large or not a JSON object, or that has a scheme and is not strict JSON."""
    if file.stat().st_size > MAX_CONFIG_BYTES:
        raise ValueError(f"its {CONFIG} is larger than {MAX_CONFIG_BYTES} bytes")
    content = file.read_bytes()
    if not content.lstrip().startswith(b"{"):
        raise ValueError(f"its {CONFIG} holds no JSON object")
    if SCHEME_KEY.encode() in content:
        read_object(file, MAX_CONFIG_BYTES)

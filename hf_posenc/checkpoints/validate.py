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

    transformers would leave out those of further layers, and draw missing ones at random. Some families have further
    layers that are left out on purpose: only what is ``unread``, by transformers' own report, says that there are more.
    """
    depth = next((config[key] for key in LAYER_COUNT_KEYS if isinstance(config.get(key), int)), None)
    of_model = (weight for weight in weights if "posenc" not in weight.split("."))
    count = max((int(found[1]) + 1 for weight in of_model if (found := LAYER.search(weight))), default=0)
    if depth is not None and (count > depth if unread else 0 < count < depth):
        raise CheckpointMismatch(
            f"The checkpoint {shown(name)} has weights of {count} layers, and its configuration says {depth:,}. "
            "Correct the number, or pass config= for a part of the model."
        )


def stored_weights(folder: Path) -> Iterator[tuple[str, str]]:
    """Name and dtype of every weight in the safetensors files of a folder."""
    for file in sorted(folder.glob(WEIGHTS)):
        with safe_open(file, "pt") as held:
            for name in held.keys():  # noqa: SIM118  # no mapping
                yield name, held.get_slice(name).get_dtype()


def check_folder(name: str) -> None:
    """Check configuration, index and weight files of a folder more strictly than transformers does.

    Raises:
        CheckpointMismatch: its configuration is too large or, where it carries a scheme, has a key twice; its index
            names missing files or files elsewhere; or weights are integers or no regular files.
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
                raise ValueError(f"its index names {shown(odd[0])}, and the folder has no such file")
            lost = sorted(one for one in names if not (folder / one).is_file())
            if lost:
                raise ValueError(f"its shard {lost[0]!r} is missing")
    except (OSError, ValueError, TypeError, SafetensorError) as error:
        raise CheckpointMismatch(
            f"The checkpoint {shown(name)} cannot be read: {error}. Copy or save it again."
        ) from error


def check_regular_files(folder: Path) -> None:
    """Refuse a pipe or a device under the name of a weight file: reading it never ends."""
    odd = [file.name for file in sorted(folder.glob(WEIGHTS)) if not file.is_file()]
    if odd:
        raise ValueError(f"its {odd[0]!r} is no file")


def check_weight_dtypes(folder: Path) -> None:
    """Refuse integer weights in a checkpoint that is not quantised: transformers would load them unchanged."""
    if QUANTISED_MARK in (folder / CONFIG).read_bytes():
        return
    for name, kind in stored_weights(folder):
        if name.endswith((".weight", ".bias")) and not kind.startswith(("F", "BF")):
            raise ValueError(f"its weight {name!r} holds numbers of the kind {kind} ({DTYPE_NAMES.get(kind, 'whole')})")


def check_config_file(file: Path) -> None:
    """Refuse a configuration that is too large or no JSON object; one that carries a scheme is parsed strictly."""
    if file.stat().st_size > MAX_CONFIG_BYTES:
        raise ValueError(f"its {CONFIG} is larger than {MAX_CONFIG_BYTES} bytes")
    content = file.read_bytes()
    if not content.lstrip().startswith(b"{"):
        raise ValueError(f"its {CONFIG} holds no JSON object")
    if SCHEME_KEY.encode() in content:
        read_object(file, MAX_CONFIG_BYTES)

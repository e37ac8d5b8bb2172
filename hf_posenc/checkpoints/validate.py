"""transformers' own errors about a checkpoint, in our words: what happened, and what to do."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from hf_posenc.core.files.json_file import read_object
from hf_posenc.errors import (
    CheckpointMismatch,
    FolderUnusable,
    MissingPackage,
    ModelNotFound,
    NoMemory,
    PosEncError,
    UnknownOption,
    WrongKind,
    nearest,
    shown,
)
from hf_posenc.patching.stored.config_guard import BLOCK

CONFIG, LARGEST_CONFIG = "config.json", 1 << 24  # bytes; some list a name for each of 20,000 classes
UNEXPECTED = re.compile(r"unexpected keyword argument '([^']*)'")
ABSENT = ("OfflineModeIsEnabled", "LocalEntryNotFoundError", "HFValidationError", "RepositoryNotFoundError")
WEIGHTS, INDEX = "model*.safetensors", "model.safetensors.index.json"
DEPTHS = ("num_hidden_layers", "n_layer")
LAYER = re.compile(r"(?:^|\.)(?:layers|layer|h)\.(\d+)\.")
NO_MEMORY = "can't allocate memory"  # of PyTorch
RESHAPED = "ignore_mismatched_sizes"  # in what transformers says of one
QUANTISED = b"quantization_config"
KINDS = {"I8": "int8", "U8": "uint8", "I16": "int16", "I32": "int32", "I64": "int64", "BOOL": "truth values"}


def named(given: Any, what: str = "A model") -> str:
    """A name or path as text.

    Raises:
        WrongKind: it is neither.
        ModelNotFound: it is empty, or a path that is no folder.
    """
    if not isinstance(given, (str, os.PathLike)) or not isinstance(os.fspath(given), str):
        raise WrongKind(f"{what} is named by a folder or a hub name, got {shown(given)}. Pass one of the two.")
    name = os.fspath(given)
    try:
        folder = bool(name) and Path(name).is_dir()
    except (OSError, ValueError):  # too long, or with a NUL
        folder = False
    path = os.path.isabs(name) or name.startswith((".", "~")) or name.count("/") > 1 or "\\" in name
    if not folder and (path or not name.strip() or not name.isprintable() or len(name) > 200 or os.path.isfile(name)):
        raise ModelNotFound(f"There is no folder {shown(name)}. Pass a folder with a config.json, or a hub name.")
    return name


def folder_to_write(given: Any) -> str:
    """A folder that files may go to, there or not.

    Raises:
        WrongKind: it is no path.
        FolderUnusable: it is a file, or lies in one.
    """
    if not isinstance(given, (str, os.PathLike)) or not isinstance(os.fspath(given), str) or not os.fspath(given):
        raise WrongKind(f"A folder to write to is a path, got {shown(given)}. Pass one.")
    name = os.fspath(given)
    if not name.isprintable():
        raise FolderUnusable(
            f"{shown(name)} cannot be a folder: it has characters that no name has. Choose another one."
        )
    try:
        there = next(place for place in (Path(name), *Path(name).absolute().parents) if place.exists())
    except (OSError, ValueError) as error:  # too long, or with a NUL
        raise FolderUnusable(f"{shown(name)} cannot be a folder ({error}). Choose another one.") from error
    if not there.is_dir():
        raise FolderUnusable(f"{shown(name)} cannot be a folder, because {str(there)!r} is a file. Choose another one.")
    return name


@contextmanager
def told(name: str, options: Iterable[str] = ()) -> Iterator[None]:
    """Say errors of transformers and safetensors in our words while ``name`` is loaded.

    Args:
        name: of the checkpoint.
        options: names that a caller may have meant.

    Raises:
        ModelNotFound: it cannot be found, or not had without a network.
        UnknownOption: a keyword that nothing takes.
        CheckpointMismatch: its files are damaged, or not such as can be loaded.
        MissingPackage: it is quantised, or its backend is one, by a package that is not installed.
        NoMemory: it is larger than the machine.
    """
    try:
        yield
    except PosEncError:
        raise
    except ImportError as error:
        raise MissingPackage(
            f"The model {shown(name)} needs a package: {in_short(error)}. Install it, or choose a model without."
        ) from error
    except Exception as error:
        first = in_short(error)
        if isinstance(error, MemoryError) or NO_MEMORY in str(error):
            raise NoMemory(
                f"The checkpoint {shown(name)} takes more memory than there is: {first or 'nothing more is known'}. "
                "Check the sizes in its configuration, or load a smaller one."
            ) from error
        wrong = UNEXPECTED.search(str(error)) if isinstance(error, TypeError) else None
        if wrong is not None:
            raise UnknownOption(
                f"Nothing takes the keyword {wrong[1]!r}.{nearest(wrong[1], options)} "
                "Leave it out; `hf-posenc info NAME` lists the options of a scheme."
            ) from error
        if type(error).__name__ in ABSENT or (isinstance(error, OSError) and not os.path.isdir(name)):
            raise ModelNotFound(
                f"The model {shown(name)} cannot be had: {first}. "
                f"Check the name; while there is a network, `hf download {name}` fetches it."
            ) from error
        raise CheckpointMismatch(
            f"The checkpoint {shown(name)} cannot be loaded: {type(error).__name__}: {first}. "
            "Copy or save it again, or check what was asked of it."
        ) from error


def in_short(error: Exception) -> str:
    """The first line of what is said, and the next one where that only leads up to it."""
    lines = [line.strip() for line in str(error).strip().splitlines()] or [""]
    if RESHAPED in lines[0]:
        return "a weight has another shape than its configuration asks for"
    return " ".join(lines[:2] if lines[0].endswith(":") else lines[:1]).rstrip(" .:")[:300]


def check_depth(config: Mapping[str, Any], name: str) -> None:
    """Refuse weights of more layers than the configuration has, which transformers would leave out, or of fewer.

    Raises:
        CheckpointMismatch: the folder ``name`` holds such.
    """
    depth = next((config[key] for key in DEPTHS if isinstance(config.get(key), int)), None)
    of_host = (weight for weight, _ in weights(Path(name)) if "posenc" not in weight.split("."))
    numbers = {int(found[1]) for weight in of_host if (found := LAYER.search(weight))}
    if depth is not None and numbers and max(numbers) + 1 != depth:
        raise CheckpointMismatch(
            f"The checkpoint {shown(name)} has weights of {max(numbers) + 1} layers, and its configuration says "
            f"{depth:,}. Correct the number, or pass config= for a part of the model."
        )


def weights(folder: Path) -> Iterator[tuple[str, str]]:
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
            check_files(folder)
            check_kinds(folder)
        if (folder / INDEX).is_file():
            shards = read_object(folder / INDEX, LARGEST_CONFIG).get("weight_map")
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


def check_files(folder: Path) -> None:
    """Refuse a pipe or a device under the name of weights: to read it never ends."""
    odd = [file.name for file in sorted(folder.glob(WEIGHTS)) if not file.is_file()]
    if odd:
        raise ValueError(f"its {odd[0]!r} is no file")


def check_kinds(folder: Path) -> None:
    """Refuse whole numbers where weights are expected: transformers would take them as they come."""
    if QUANTISED in (folder / CONFIG).read_bytes():
        return
    for name, kind in weights(folder):
        if name.endswith((".weight", ".bias")) and not kind.startswith(("F", "BF")):
            raise ValueError(f"its weight {name!r} holds numbers of the kind {kind} ({KINDS.get(kind, 'whole')})")


def check_config_file(file: Path) -> None:
    """Refuse a configuration of absurd size, or that is none; one that carries a scheme is read strictly."""
    if file.stat().st_size > LARGEST_CONFIG:
        raise ValueError(f"its {CONFIG} is larger than {LARGEST_CONFIG} bytes")
    content = file.read_bytes()
    if not content.lstrip().startswith(b"{"):
        raise ValueError(f"its {CONFIG} holds no JSON object")
    if BLOCK.encode() in content:
        read_object(file, LARGEST_CONFIG)

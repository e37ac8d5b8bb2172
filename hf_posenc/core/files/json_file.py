"""Parse small JSON files strictly: size, encoding, depth and duplicate keys are checked."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

MAX_BYTES = 1 << 20  # larger files are damaged or an attack
MAX_DEPTH = 20  # nested objects and lists


def read_object(file: Path, largest: int = MAX_BYTES) -> dict[str, Any]:
    """Parse the JSON object in a file.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is too large or too deep, has a duplicate key, or contains no JSON object.
    """
    with open(file, "rb", opener=open_without_waiting) as opened:
        data = opened.read(largest + 1)
    if len(data) > largest:
        raise ValueError(f"it is larger than {largest} bytes")
    try:
        content = json.loads(data.decode("utf-8"), object_pairs_hook=reject_duplicate_keys)
    except RecursionError as error:
        raise ValueError(f"its objects are nested more than {MAX_DEPTH} deep") from error
    if not isinstance(content, dict):
        raise ValueError("it holds no JSON object")
    if is_nested_deeper(content, MAX_DEPTH):
        raise ValueError(f"its objects are nested more than {MAX_DEPTH} deep")
    return content


def open_without_waiting(path: str, flags: int) -> int:
    """Opener that does not block on a pipe."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def reject_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build a dictionary from key–value pairs; raises `ValueError` for a duplicate key."""
    content = dict(pairs)
    if len(content) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"it has the key {max(names, key=names.count)!r} twice")
    return content


def is_nested_deeper(value: Any, levels: int) -> bool:
    """Whether objects and lists are nested more than ``levels`` deep."""
    if not isinstance(value, (dict, list)):
        return False
    children = value.values() if isinstance(value, dict) else value
    return levels == 0 or any(is_nested_deeper(child, levels - 1) for child in children)

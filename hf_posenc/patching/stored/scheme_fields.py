"""Size, format and keys of a scheme config as JSON gave it, checked before anything is looked up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hf_posenc.errors import CheckpointMismatch, nearest, shown

FORMAT = 1
FIELDS = ("format", "scheme", "layers", "trained_length", "target_length", "host_length")
LENGTHS = ("trained_length", "target_length", "host_length")
MAX_DEPTH = 20  # objects and lists in each other; a scheme config has four
MAX_SIZE = 1 << 20  # values and characters; the largest of ours have two numbers a rotated pair


def check_fields(value: Any, where: str) -> None:
    """Refuse JSON that is no scheme config of the format this version reads.

    Args:
        value: the parsed JSON.
        where: the file or model it comes from, for messages.

    Raises:
        CheckpointMismatch: it is no object, too large, of another format, or has unknown or missing keys.
    """
    if not isinstance(value, Mapping):
        raise unreadable(where, f"it is no object but {shown(value)}")
    if is_too_large(value):
        raise unreadable(
            where, f"it has more than {MAX_SIZE} values and characters, or more than {MAX_DEPTH} objects in each other"
        )
    number = value.get("format")
    if isinstance(number, int) and number > FORMAT:
        raise CheckpointMismatch(
            f"The position_scheme of {where} has format {shown(number)}; this hf_posenc reads up to {FORMAT}. "
            "Update hf_posenc."
        )
    if number is True or number != FORMAT:
        raise unreadable(where, f"its format is {shown(number)}, not {FORMAT}")
    for key in value:
        if key not in FIELDS:
            raise unreadable(where, f"it has the unknown key {shown(key)}.{nearest(key, FIELDS)}")
    for key in FIELDS:
        if key not in value:
            raise unreadable(where, f"it has no {key!r}")


def is_too_large(value: Any) -> bool:
    """Whether a value parsed from JSON is larger or deeper than anything this package writes."""
    left, seen = [(value, 0)], 0
    while left:
        one, depth = left.pop()
        seen += len(one) if isinstance(one, (str, bytes)) else 1
        if depth > MAX_DEPTH or seen > MAX_SIZE:
            return True
        if isinstance(one, Mapping):
            left += [(each, depth + 1) for pair in one.items() for each in pair]
        elif isinstance(one, (list, tuple)):
            left += [(each, depth + 1) for each in one]
    return False


def unreadable(where: str, reason: str) -> CheckpointMismatch:
    """The error for a scheme config that cannot be read."""
    end = "" if reason.endswith("?") else "."
    return CheckpointMismatch(
        f"The position_scheme of {where} cannot be read: {reason}{end} Save the patched model again."
    )

"""What a sweep over lengths is asked for, and how its metrics are called.

nll_L512        a metric at a length             acc_L512_D50        and at a depth of 50 %
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_posenc.core.lengths import MAX_LENGTH
from hf_posenc.errors import shown
from hf_posenc.eval.errors import TaskOptionOutOfRange

NAME = re.compile(r"(?P<metric>\w+?)_L(?P<length>\d+)(?:_D(?P<depth>[\d.]+))?")


@dataclass(frozen=True)
class Sweep:
    """Lengths in tokens, and what is measured at each.

    Attributes:
        lengths: ascending, without repeats.
        samples: windows of text.
        keys: passkeys, each hidden at every depth.
        scored: tokens scored at the end of a window.
        depths: shares of the filler before the needle.
        longest: tokens kept free before every target, so that runs over different lengths meet the same targets.
        seed: of keys and masks.
        text: path of a text file; None is the held-out part of the standard library.
        docs: text or JSON-lines files, folders of them, or the name of a dataset; for `posenc_docs`.
        field: where a record of `docs` has its text.
        stride: tokens by which a sliding window moves on, so many are scored at a time.
        stretch: tokens of each text that a sliding window scores.
        from_start: whether a sliding window starts with the text, as in papers, or has `length` − `stride` tokens
            before it at the least.
        alphabet: distinct tokens of random strings.
    """

    lengths: tuple[int, ...]
    samples: int
    keys: int
    scored: int
    depths: tuple[float, ...]
    longest: int
    seed: int
    text: str | None
    docs: tuple[str, ...]
    field: str
    stride: int
    stretch: int
    from_start: bool
    alphabet: int

    @classmethod
    def of(cls, metadata: Mapping[str, Any]) -> Sweep:
        """The sweep that a task's metadata describes.

        Raises:
            TaskOptionOutOfRange: an option is missing or makes no sense.
        """
        lengths = lengths_of(metadata.get("lengths"))
        stride = whole("stride", metadata.get("stride") or 256)
        longest = whole("longest", metadata.get("longest") or lengths[-1])
        if longest < lengths[-1]:
            raise TaskOptionOutOfRange(
                f"longest is {longest}, shorter than length {lengths[-1]}. Raise it, or leave it out."
            )
        return cls(
            lengths=lengths,
            samples=whole("samples", metadata.get("samples", 16)),
            keys=whole("keys", metadata.get("keys", 8)),
            scored=whole("scored", metadata.get("scored", 64)),
            depths=depths_of(metadata.get("depths", (0.0, 0.25, 0.5, 0.75, 1.0))),
            longest=longest,
            seed=seed_of(metadata.get("seed", 0)),
            text=metadata.get("text"),
            docs=tuple(map(str, paths(metadata.get("docs")))),
            field=str(metadata.get("field") or "text"),
            stride=stride,
            stretch=whole("stretch", metadata.get("stretch") or 4 * stride),
            from_start=flag("from_start", metadata.get("from_start", False)),
            alphabet=whole("alphabet", metadata.get("alphabet") or 1000),
        )


def lengths_of(value: Any) -> tuple[int, ...]:
    """Lengths, ascending, each once.

    Raises:
        TaskOptionOutOfRange: one is no length in tokens, or there is none.
    """
    lengths = tuple(sorted({whole("lengths", one) for one in listed(value)}))
    if not lengths:
        raise TaskOptionOutOfRange("The task has no lengths. Pass --metadata '{\"lengths\": [256, 512]}'.")
    return lengths


def depths_of(value: Any) -> tuple[float, ...]:
    """Depths, in their order.

    Raises:
        TaskOptionOutOfRange: one is no share, or there is none.
    """
    depths = tuple(map(share, listed(value)))
    if not depths:
        raise TaskOptionOutOfRange("depths has no number. Pass shares from 0 to 1, such as 0.5, the middle.")
    return depths


def listed(value: Any) -> Sequence[Any]:
    """A list as it comes from JSON, from ``"256;512"`` on a command line, or from a single number."""
    if value is None:
        return ()
    if isinstance(value, str):
        return [part for part in re.split(r"[;,\s]+", value.strip("[]")) if part]
    return value if isinstance(value, Sequence) and not isinstance(value, bytes) else (value,)


def paths(value: Any) -> Sequence[Any]:
    """A path or several; a path may hold blanks and commas.

    Raises:
        TaskOptionOutOfRange: it is neither.
    """
    found = (() if value is None else (value,)) if isinstance(value, (str, Path, type(None))) else value
    if not isinstance(found, (list, tuple)) or not all(isinstance(one, (str, Path)) and str(one) for one in found):
        raise TaskOptionOutOfRange(f"docs must be paths or the name of a dataset, got {shown(value)}. Pass one.")
    return found


def flag(name: str, value: Any) -> bool:
    """``value`` as yes or no, also as a command line spells it.

    Raises:
        TaskOptionOutOfRange: it is neither.
    """
    known = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
    if str(value).lower() not in known:
        raise TaskOptionOutOfRange(f"{name} must be true or false, got {shown(value)}. Pass one of the two.")
    return known[str(value).lower()]


def whole(name: str, value: Any) -> int:
    """``value`` as a count, 1 … 2³¹ − 1, also as a command line spells it.

    Raises:
        TaskOptionOutOfRange: it is none.
    """
    number = count(value)
    if number is None or not 1 <= number <= MAX_LENGTH:
        raise TaskOptionOutOfRange(
            f"{name} must be whole numbers from 1 to {MAX_LENGTH}, got {shown(value)}. Pass for example 512."
        )
    return number


def seed_of(value: Any) -> int:
    """``value`` as a seed, 0 … 2³² − 1.

    Raises:
        TaskOptionOutOfRange: it is none.
    """
    number = count(value)
    if number is None or not 0 <= number < 2**32:
        raise TaskOptionOutOfRange(
            f"seed must be a whole number from 0 to {2**32 - 1}, got {shown(value)}. Pass for example 0."
        )
    return number


def count(value: Any) -> int | None:
    """``value`` as a whole number; None where it is not one, which a truth value is not."""
    if isinstance(value, bool):
        return None
    try:
        number = int(value)
        return number if float(value) == number else None
    except (TypeError, ValueError, OverflowError):
        return None


def share(value: Any) -> float:
    """``value`` as a depth, 0 … 1.

    Raises:
        TaskOptionOutOfRange: it is none.
    """
    try:
        depth = -1.0 if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        depth = -1.0
    if not 0.0 <= depth <= 1.0:
        raise TaskOptionOutOfRange(
            f"depths must lie between 0 and 1, got {shown(value)}. 0.5 is the middle of the text."
        )
    return depth


def metric_name(metric: str, length: int, depth: float | None = None) -> str:
    """``nll_L512``, ``acc_L512_D50``."""
    return f"{metric}_L{length}" + ("" if depth is None else f"_D{100 * depth:g}")


def parse_metric(name: str) -> tuple[str, int, float | None] | None:
    """Metric, length and depth of a name that `metric_name` made; None for other names."""
    found = NAME.fullmatch(name)
    if found is None:
        return None
    depth = found["depth"]
    return found["metric"], int(found["length"]), None if depth is None else float(depth) / 100

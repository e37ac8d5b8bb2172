"""Settings of a length sweep, and the names of its metrics.

nll_L512        a metric at a length             acc_L512_D50        and at a depth of 50 %
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hf_posenc.eval.tasks.parse import depths_of, flag, lengths_of, longest_of, paths, seed_of, whole

NAME = re.compile(r"(?P<metric>\w+?)_L(?P<length>\d+)(?:_D(?P<depth>[\d.]+))?")

PARTICULAR = frozenset({"alphabet", "docs", "from_start", "stretch", "stride"})
"""Settings that few tasks read; the others read none of them."""


@dataclass(frozen=True)
class Sweep:
    """Settings of a length sweep; lengths are in tokens.

    Attributes:
        lengths: ascending, without repeats.
        samples: windows of text.
        keys: passkeys, each hidden at every depth.
        scored: tokens scored at the end of a window.
        depths: shares of the filler before the needle.
        longest: tokens available before every target; with the same value, different lengths score the same targets.
        seed: of keys, masks and places of windows.
        text: one or several files, folders and datasets; None is the held-out part of the standard library.
        docs: files, folders, or the name of a dataset; for `posenc_docs`, which reads `text` where there are none.
        field: column of a record that holds its text.
        separator: what separates the documents of a plain text file; None: each file is one.
        stride: tokens by which a sliding window moves on, so many are scored at a time.
        stretch: tokens of each text that a sliding window scores.
        from_start: whether a sliding window starts with the text, as in papers, or has `length` − `stride` tokens
            before it at the least; for `posenc_docs`, whether the beginning of each document is used and not windows of
            all its parts.
        alphabet: distinct tokens of random strings.
    """

    lengths: tuple[int, ...]
    samples: int
    keys: int
    scored: int
    depths: tuple[float, ...]
    longest: int
    seed: int
    text: Any
    docs: tuple[str, ...]
    field: str
    separator: str | None
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
        return cls(
            lengths=lengths,
            samples=whole("samples", metadata.get("samples", 16)),
            keys=whole("keys", metadata.get("keys", 8)),
            scored=whole("scored", metadata.get("scored", 64)),
            depths=depths_of(metadata.get("depths", (0.0, 0.25, 0.5, 0.75, 1.0))),
            longest=longest_of(metadata.get("longest"), lengths),
            seed=seed_of(metadata.get("seed", 0)),
            text=metadata.get("text"),
            docs=tuple(map(str, paths(metadata.get("docs")))),
            field=str(metadata.get("field") or "text"),
            separator=metadata.get("separator"),
            stride=stride,
            stretch=whole("stretch", metadata.get("stretch") or 4 * stride),
            from_start=flag("from_start", metadata.get("from_start", False)),
            alphabet=whole("alphabet", metadata.get("alphabet") or 1000),
        )


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

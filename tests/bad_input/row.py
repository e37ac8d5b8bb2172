"""A row of the table of bad inputs: the input, the expected error, and the state that must not change."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

import hf_posenc
from hf_posenc import errors
from hf_posenc.checks.tiny_models import tiny_model

from ..small_models import edit

TWO_SENTENCES = re.compile(r"^\S.+[.?!)] \S.+[.?!)…]$", re.DOTALL)
Errors = type[errors.PosEncError] | tuple[type[errors.PosEncError], ...]
NAN, INF = float("nan"), float("inf")


@dataclass
class Scene:
    """Folders and model for the action of a row.

    Attributes:
        folder: empty folder for output; every file in it afterwards was written by the call under test.
        saved: folders made once: ``llama`` and ``gpt2`` patched, ``plain``, ``adapter`` and its ``base``.
        desk: folder for damaged copies.
        model: model of the row.
    """

    folder: Path
    saved: dict[str, Path]
    desk: Path
    model: Any = None


Act = Callable[[Scene], object]


@dataclass(frozen=True)
class Row:
    """A bad input.

    Attributes:
        name: description of the input.
        error: expected type of the error.
        key: text that the message must contain: an option, a value, a file.
        act: function that passes the bad input.
        model_type: tiny model for the action; patched first with ``patch``.
    """

    name: str
    error: Errors
    key: str
    act: Act
    model_type: str = "llama"
    patch: tuple[str, dict[str, Any]] | None = None

    def model(self) -> nn.Module:
        """A fresh model."""
        model = tiny_model(self.model_type)
        return model if self.patch is None else hf_posenc.patch_model(model, self.patch[0], **self.patch[1])


Change = Callable[[Path], object]
"""Function that damages a folder."""


def unchanged(folder: Path) -> None:
    """Leave the folder as it is."""


def bytes_of(name: str, change: Callable[[bytes], bytes]) -> Change:
    """A change of the bytes of a file."""
    return lambda folder: (folder / name).write_bytes(change((folder / name).read_bytes()))


def entries(name: str = "config.json", **changes: Any) -> Change:
    """A change of entries of a JSON file, made by somebody who knows of its digest."""
    return lambda folder: edit(folder, name, without=("sha256",), **changes)


def patching(scheme: Any, **options: Any) -> Act:
    """``patch_model`` of the scene's model."""
    return lambda scene: hf_posenc.patch_model(scene.model, scheme, **options)

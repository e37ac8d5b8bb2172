"""Log of a search: its losses in the order they were measured, written to disk one by one.

An optimiser's draws follow from its seed and the losses it received. A search that was stopped is therefore replayed
from its file, without measuring anything twice, and then continues.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hf_posenc.core.files.atomic import write_json
from hf_posenc.core.files.json_file import read_object
from hf_posenc.errors import CheckpointMismatch, shown

Factors = tuple[float, ...]
Progress = Callable[[int, float, float], None]


class SearchLog:
    """Losses, the best factors, and the file that keeps both.

    Args:
        path: the file; None keeps nothing.
        settings: what the losses depend on, in JSON's types.
        progress: called after every evaluation with its number, its loss and the best so far.

    Raises:
        CheckpointMismatch: the file is of a search with other settings, or is damaged.
    """

    def __init__(self, path: Path | None, settings: dict[str, Any], progress: Progress | None) -> None:
        self.path, self.settings, self.progress = path, settings, progress
        self.known: list[float] = self._read()
        self.losses: list[float] = []
        self.best: tuple[float, Factors] = (math.inf, ())

    def enter(self, factors: Factors, measure: Callable[[], float]) -> float:
        """The loss under ``factors``, the next in the search."""
        number = len(self.losses)
        fresh = number >= len(self.known)
        loss = measure() if fresh else self.known[number]
        self.losses.append(loss)
        if loss < self.best[0]:
            self.best = (loss, factors)
        if fresh and self.path is not None:
            best = {"loss": self.best[0], "long_factor": list(self.best[1])}
            write_json(self.path, {"settings": self.settings, "losses": self.losses, "best": best})
        if self.progress is not None:
            self.progress(number + 1, loss, self.best[0])
        return loss

    def _read(self) -> list[float]:
        if self.path is None or not self.path.exists():
            return []
        settings, losses = read_search(self.path)
        for name, value in self.settings.items():
            if settings.get(name) != value:
                raise CheckpointMismatch(
                    f"The search in {self.path} had {name}={shown(settings.get(name))}, this one has {shown(value)}. "
                    "Go on with the same settings, or choose another file."
                )
        return losses


def read_search(path: Path) -> tuple[dict[str, Any], list[float]]:
    """Settings and losses in the file of a search.

    Raises:
        CheckpointMismatch: it is damaged, or is no such file.
    """
    try:
        stored = read_object(path)
    except (OSError, ValueError) as error:
        raise CheckpointMismatch(
            f"The search in {path} cannot be read: {error}. Restore the file, or choose another one."
        ) from error
    settings, losses = stored.get("settings"), stored.get("losses")
    if isinstance(settings, dict) and isinstance(losses, list) and all(isinstance(loss, float) for loss in losses):
        return settings, losses
    raise CheckpointMismatch(
        f"{path} holds no settings and losses of a search. Restore the file, or choose another one."
    )

"""The command that measures one cell of a leaderboard again.

It names models and texts as they were given; a live model, or a dataset in memory, has to be saved under that name.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from hf_posenc.eval import MeasuredModel
from hf_posenc.eval.report.settings import option_text
from hf_posenc.eval.task_settings import reads
from hf_posenc.eval.texts.measured_text import describe
from hf_posenc.texts import TextSource
from hf_posenc.texts.document import TEXT

ESCAPES = {"\n": r"\n", "\t": r"\t", "\f": r"\f"}
"""White space that the command line takes in this form."""


@dataclass(frozen=True)
class Settings:
    """Settings of the cells, as `hf_posenc.eval.compare` takes them.

    Attributes:
        samples, scored, keys, depths, seed: of the tasks.
        text: words of the command line that name the text; empty for the default text.
        factor_per_length: whether a scheme is patched for each length, and not once for the longest.
    """

    samples: int
    scored: int
    keys: int
    depths: tuple[float, ...]
    seed: int
    text: tuple[str, ...] = ()
    factor_per_length: bool = False

    def cell_command(self, model: MeasuredModel, scheme: str, task: str, length: int, longest: int) -> str:
        """Format the ``hf-posenc compare`` command of one cell, quoted for a shell."""
        loading = [word for name, value in loading_options(model).items() for word in (f"--{name}", value)]
        words = [
            "hf-posenc", "compare", "--model", model.shown_name, *loading, "--schemes", scheme, "--tasks", task,
            "--lengths", str(length), "--longest", str(longest), *self.words(task), "--out", "results/cell",
        ]  # fmt: skip
        return shlex.join(words)

    def words(self, task: str) -> Sequence[str]:
        """The settings that a task reads, as words of the command line."""
        depths = ",".join(option_text(depth) for depth in self.depths)
        given = {"samples": str(self.samples), "scored": str(self.scored), "keys": str(self.keys), "depths": depths}
        read = [word for name, value in given.items() if reads(task, name) for word in (f"--{name}", value)]
        per_length = ["--factor-per-length"] if self.factor_per_length else []
        return [*per_length, *read, "--seed", str(self.seed), *self.text]


def loading_options(model: MeasuredModel) -> dict[str, str]:
    """How a model is loaded, by the names of the command line; without what is the default there."""
    given = {name: model.arguments.get(name) for name in ("dtype", "device")}
    return {name: str(value).removeprefix("torch.") for name, value in given.items() if value not in (None, "auto")}


def text_words(source: TextSource | None) -> tuple[str, ...]:
    """A text as words of the command line."""
    if source is None:
        return ()
    words = [word for part in source.parts for word in ("--text", describe_part(part))]
    if source.field != TEXT:
        words += ["--text-field", source.field]
    if source.separator is not None:
        words += ["--document-separator", "".join(ESCAPES.get(sign, sign) for sign in source.separator)]
    return tuple(words)


def describe_part(part: object) -> str:
    """A part of a text by its name."""
    return str(part) if isinstance(part, (str, os.PathLike)) else describe(part)

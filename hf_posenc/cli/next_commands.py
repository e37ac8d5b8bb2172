"""The commands that go on from what a command has written; each works as it is printed."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from typer import Context

from hf_posenc.cli import output
from hf_posenc.cli.arguments import command_line
from hf_posenc.cli.global_options import program

CELLS = "Finished cells are kept"


def show_next(commands: Sequence[str]) -> None:
    """Print commands, one a line."""
    if commands:
        output.show_text("\n".join(("Next:", *(f"  {command}" for command in commands))))


def after_finetune(run: Path, model: Any, texts: Sequence[str] = ()) -> list[str]:
    """Measure the tuned model, and merge or export it where that is possible.

    Args:
        run: folder of the run.
        model: the tuned one.
        texts: options that name the text to measure on.
    """
    from hf_posenc.checkpoints.plain_config import is_expressible

    measure = command("eval", run, *texts)
    if hasattr(model, "merge_and_unload"):
        return [measure, command("merge", run, "--out", f"{run}-merged")]
    return [measure, command("export", run, "--out", f"{run}-plain")] if is_expressible(model) else [measure]


def command(name: str, model: Path, *words: str) -> str:
    """A command on a model, quoted for a shell."""
    return shlex.join([*program(), name, "--model", str(model), *words])


@contextmanager
def resume_hint(context: Context, kept: str = CELLS, flag: str = "") -> Iterator[None]:
    """If the block is interrupted, write to stderr what is kept, and the running command with ``flag`` behind it."""
    try:
        yield
    except KeyboardInterrupt:
        again = " ".join(filter(None, (command_line(context), flag)))
        output.fail(f"Interrupted. {kept}; resume with: {again}")
        raise

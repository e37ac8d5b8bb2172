"""What an interrupted command says last: what it has kept, and the command that goes on from there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from typer import Context

from hf_posenc.cli import output
from hf_posenc.cli.arguments import command_line

CELLS = "Finished cells are kept"


@contextmanager
def resume_hint(context: Context, kept: str = CELLS, flag: str = "") -> Iterator[None]:
    """If the block is interrupted, write to stderr what is kept, and the running command with ``flag`` behind it."""
    try:
        yield
    except KeyboardInterrupt:
        again = " ".join(filter(None, (command_line(context), flag)))
        output.fail(f"Interrupted. {kept}; resume with: {again}")
        raise

"""Write the command-line reference from every command's ``--help``, before Sphinx reads its sources."""

from __future__ import annotations

import io
import re
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import Any

from hf_posenc.cli import main

INTRODUCTION = """# Command line

This page has the `--help` of every command. A model is a folder, a name on the Hub or a bundled model
(`starter:llama`): see [how a model is named](saving.md#how-a-model-is-named). With `--json` a command writes JSON to
stdout and nothing else; progress and errors go to stderr. `--debug`, anywhere, shows errors as tracebacks;
`--import FILE`, anywhere, makes the schemes and adapters of a Python file [known by name](add-scheme.md#use-it).

| exit code | means |
|---|---|
| 0 | done |
| 1 | failed |
| 2 | unknown command, option, scheme or file |
| 3 | done, but a part of it was refused |
| 4 | a check failed (`check`) |
| 130 | interrupted |
"""


def setup(app: Any) -> dict[str, Any]:
    """Sphinx calls this."""
    app.connect("builder-inited", lambda app: write_page(Path(app.srcdir) / "commands.md"))
    return {"version": "1", "parallel_read_safe": True}


def write_page(file: Path) -> None:
    """Write the page, unless it is current."""
    text = "\n".join([INTRODUCTION, *(f"## {name}\n\n```text\n{helps(name)}```\n" for name in command_names())])
    if not file.exists() or file.read_text(encoding="utf-8") != text:
        file.write_text(text, encoding="utf-8")


def command_names() -> list[str]:
    """The commands, in the order of the first help text."""
    _, _, listed = helps().partition("Commands:\n")
    return re.findall(r"^  ([a-z-]+)  ", listed.partition("\n\n")[0], re.MULTILINE)


def helps(*command: str) -> str:
    """Output of ``hf-posenc COMMAND --help``."""
    output = io.StringIO()
    with redirect_stdout(output), suppress(SystemExit):
        main([*command, "--help"])
    return output.getvalue().strip("\n") + "\n"

"""The commands that go on from what a command has written; each works as it is printed."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hf_posenc.cli import output
from hf_posenc.cli.imports import program

OF_ROTATIONS = ("rerope", "yarn")
OF_OTHERS = ("learned_interp", "alibi")
"""Schemes to compare a fine-tuned model with, of which the first that fits is proposed: for a model that rotates
queries and keys itself, and for others, to which a rotation is new and would have to be trained."""
LOAD = "from transformers import {0}; print({0}.from_pretrained({1}).config)"


def show_next(commands: Sequence[str]) -> None:
    """Print commands, one a line."""
    if commands:
        output.show_text("\n".join(("Next:", *(f"  {command}" for command in commands))))


def after_finetune(run: Path, model: Any, texts: Sequence[str] = ()) -> list[str]:
    """Measure the tuned model, compare it with another scheme on its weights, and merge or export it.

    Args:
        run: folder of the run.
        model: the tuned one.
        texts: options that name the text to measure on.
    """
    from hf_posenc.checkpoints.plain_config import is_expressible

    commands = [command("eval", run, *texts)]
    if (other := scheme_to_compare(model)) is not None:
        commands.append(command("compare", run, "--schemes", f"unpatched,{other}", *texts, "--out", f"{run}-compared"))
    if hasattr(model, "merge_and_unload"):
        return [*commands, command("merge", run, "--out", f"{run}-merged")]
    return commands + ([export(run)] if is_expressible(model) else [])


def after_merge(folder: Path, *, expressible: bool) -> list[str]:
    """Measure the merged model, and export it where transformers has its scheme."""
    return [command("eval", folder)] + ([export(folder)] if expressible else [])


def after_export(folder: Path) -> list[str]:
    """Load the export without this package."""
    from transformers import CONFIG_NAME

    from hf_posenc.core.files.json_file import read_object

    (written,) = read_object(folder / CONFIG_NAME)["architectures"]
    return [shlex.join(["python", "-c", LOAD.format(written, json.dumps(str(folder), ensure_ascii=False))])]


def scheme_to_compare(model: Any) -> str | None:
    """A scheme that needs no training, is defined for the model and is not the one it has; None where it has none."""
    from hf_posenc.patching.state import describe, is_patched, scheme_of
    from hf_posenc.schemes.registry import scheme_record

    if not is_patched(model):
        return None
    geometry, own = scheme_of(model).geometry, describe(model).scheme
    candidates = OF_OTHERS if geometry.rotary is None else OF_ROTATIONS
    fitting = (name for name in candidates if name != own and not scheme_record(name).unmet_needs(geometry))
    return next(fitting, None)


def export(folder: Path) -> str:
    """The command that exports a model."""
    return command("export", folder, "--out", f"{folder}-plain")


def command(name: str, model: Path, *words: str) -> str:
    """A command on a model, quoted for a shell."""
    return shlex.join([*program(), name, "--model", str(model), *words])

"""What several examples share: load a model, read texts, show progress, keep the runs of two folders apart."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from transformers import AutoTokenizer

import hf_posenc
from hf_posenc.core.files.atomic import write_json
from hf_posenc.errors import PosEncError
from hf_posenc.eval.texts.measured_text import TRAINING, module_text
from hf_posenc.texts import TextSource

STARTERS = ("llama", "gpt2", "bert")
FREE = ("output", "out", "resume", "seeds", "save_every", "ways")  # what may change between a run and its continuation


def run_command(run: Callable[[argparse.Namespace], None], arguments: argparse.Namespace) -> None:
    """Run an example, and exit with the message of an error that its caller can put right."""
    try:
        run(arguments)
    except (PosEncError, OSError) as error:
        raise SystemExit(str(error)) from error


def load_model(name: str) -> tuple[Any, Any]:
    """A bundled starter, or a model and its tokenizer from a folder or the Hub."""
    if name in STARTERS:
        return hf_posenc.load_starter(name)  # type: ignore[arg-type]
    return hf_posenc.from_pretrained(name), AutoTokenizer.from_pretrained(name)


def read_texts(names: list[str] | None, modules: Sequence[str] = TRAINING) -> TextSource:
    """The files, folders and datasets of these names, or modules of the standard library."""
    if names is None:
        return TextSource(tuple(text for name in modules if (text := module_text(name))))
    return TextSource.of_names(names)


def doubled_lengths(trained: int, target: int) -> list[int]:
    """``trained``, doubled while it stays below ``target``, and ``target``."""
    return [*(trained * 2**n for n in range(math.ceil(math.log2(target / trained)))), target]


def claim_folder(folder: Path, arguments: argparse.Namespace) -> None:
    """Write the settings of a run into its folder, which belongs to one run and its continuations.

    Raises:
        SystemExit: the folder holds a run that is not continued, or one with other settings.
    """
    file = folder / "settings.json"
    settings = {name: value for name, value in vars(arguments).items() if name not in FREE}
    settings = json.loads(json.dumps(settings, default=str))
    if file.exists() and not arguments.resume:
        raise SystemExit(f"{folder} holds an earlier run. Add --resume, or choose another folder.")
    if file.exists() and (before := json.loads(file.read_text(encoding="utf-8"))) != settings:
        changed = sorted(name for name in before.keys() | settings.keys() if before.get(name) != settings.get(name))
        raise SystemExit(f"The run in {folder} had other {', '.join(changed)}. Choose another folder.")
    write_json(file, settings)


def progress_bar() -> Progress:
    """A line per task: share done, time left and the loss of the step."""
    return Progress(
        TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn(), TextColumn("{task.fields[loss]}")
    )


def mean_and_deviation(values: Sequence[float | None]) -> str:
    """Mean ± standard deviation, without values that are missing; a dash where all are."""
    known = [value for value in values if value is not None]
    if not known:
        return "–"
    return f"{mean(known):.3f}" + (f" ± {stdev(known):.3f}" if len(known) > 1 else "")

"""Functions that several examples share: load a model, read texts, show progress, protect the folder of a run."""

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
FREE = ("output", "out", "resume", "seeds", "save_every", "ways")  # options that may change when a run is resumed


def run_command(run: Callable[[argparse.Namespace], None], arguments: argparse.Namespace) -> None:
    """Run an example; exit with the message of an error that the user can correct, without a traceback."""
    try:
        run(arguments)
    except (PosEncError, OSError) as error:
        raise SystemExit(str(error)) from error


def load_model(name: str) -> tuple[Any, Any]:
    """Load a model and its tokenizer: a bundled starter, or one from a folder or the Hub."""
    if name in STARTERS:
        return hf_posenc.load_starter(name)  # type: ignore[arg-type]
    return hf_posenc.from_pretrained(name), AutoTokenizer.from_pretrained(name)


def read_texts(names: list[str] | None, modules: Sequence[str] = TRAINING) -> TextSource:
    """Texts from files, folders and datasets; by default modules of the standard library."""
    if names is None:
        return TextSource(tuple(text for name in modules if (text := module_text(name))))
    return TextSource.of_names(names)


def doubled_lengths(trained: int, target: int) -> list[int]:
    """Lengths from ``trained`` to ``target``: ``trained``, its doublings below ``target``, and ``target``."""
    return [*(trained * 2**n for n in range(math.ceil(math.log2(target / trained)))), target]


def claim_folder(folder: Path, arguments: argparse.Namespace) -> None:
    """Write the settings of a run into its folder, which belongs to this run alone.

    Raises:
        SystemExit: the folder holds a run that is not to be resumed, or one with other settings.
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
    """Progress bars with the share done, the time left and the loss of the step."""
    return Progress(
        TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn(), TextColumn("{task.fields[loss]}")
    )


def mean_and_deviation(values: Sequence[float | None]) -> str:
    """Format mean ± standard deviation of the values that are not None; a dash if there are none."""
    known = [value for value in values if value is not None]
    if not known:
        return "–"
    return f"{mean(known):.3f}" + (f" ± {stdev(known):.3f}" if len(known) > 1 else "")

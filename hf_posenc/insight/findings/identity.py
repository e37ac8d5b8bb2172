"""What the cells of a finding are known by: its settings, the model, the text, and the code that computes them."""

from __future__ import annotations

import inspect
import platform
import sys
from collections.abc import Callable, Mapping
from functools import lru_cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import transformers

from hf_posenc.checkpoints.adapter_folder import local_folder
from hf_posenc.checkpoints.model_name import ModelName
from hf_posenc.eval.comparison.identity import digest_of, files_digest, to_json
from hf_posenc.eval.texts.measured_text import MeasuredText
from hf_posenc.insight.findings.finding import Finding, Job, Measure

PACKAGE = f"{__package__}."
MODEL_FILES = (".json", ".safetensors", ".model", ".txt", ".jinja")
"""Endings of the files that a model and its tokenizer are made of."""


def settings_of(finding: Finding, job: Job, at: float, shared: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that the numbers of one cell depend on."""
    return {
        "finding": finding.name, "variant": job.variant, "with": to_json(job.settings), "at": float(at),
        "axis": list(map(float, job.axis)), "seed": job.seed, "options": to_json(job.options), **shared,
    }  # fmt: skip


def shared_settings(finding: Finding, model: str | None, text: MeasuredText | None) -> dict[str, Any]:
    """The settings that all cells of a run share: digests of model, text and code, and versions."""
    return {
        "model": None if model is None else model_digest(model),
        "text": None if text is None else text.digest,
        "code": code_of(finding.measure),
        "versions": {
            "python": platform.python_version(), "hf-posenc": version("hf-posenc"), "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
    }  # fmt: skip


def model_digest(model: str) -> str:
    """Digest of the files of a model, and of the PEFT adapter on top of it."""
    named = ModelName.of(model)
    folders = [local_folder(name) for name in (named.model, named.adapter) if name is not None]
    return digest_of(" ".join(files_digest(folder, MODEL_FILES) for folder in folders))


def code_of(measure: Measure) -> str:
    """Digest of the files that measure, and of the schemes."""
    own = sorted(digest_of(file.read_bytes()) for file in files_of(inspect.unwrap(measure), set()))
    return digest_of(" ".join((*own, schemes_digest())))


def files_of(function: Callable[..., Any], found: set[Path]) -> set[Path]:
    """The file of a function, and of all functions of the findings that its module uses.

    A function in a package below that of the findings takes all files of its package along.
    """
    file = Path(inspect.getfile(function))
    if file not in found:
        found.add(file)
        if function.__module__.startswith(PACKAGE) and file.parent != Path(__file__).parent:
            found.update(file.parent.glob("*.py"))
        for used in vars(sys.modules[function.__module__]).values():
            if inspect.isfunction(inspect.unwrap(used)) and used.__module__.startswith(PACKAGE):
                files_of(inspect.unwrap(used), found)
    return found


@lru_cache(maxsize=1)
def schemes_digest() -> str:
    """Digest of the source files of all schemes and of training."""
    specs = [find_spec(name) for name in ("hf_posenc.schemes", "hf_posenc.training")]
    folders = [Path(folder) for spec in specs if spec for folder in spec.submodule_search_locations or ()]
    return digest_of(" ".join(files_digest(folder, (".py",)) for folder in folders))

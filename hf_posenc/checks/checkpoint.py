"""Checks of checkpoints: a model saved or exported, and loaded again, equals the one in memory."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory

from safetensors.torch import load_file, save_file
from torch import Tensor

from hf_posenc.checkpoints.export import export_native
from hf_posenc.checkpoints.load import from_pretrained
from hf_posenc.checkpoints.native_parameters import rope_parameters_of
from hf_posenc.checks.case import Case
from hf_posenc.checks.deviation import Deviation
from hf_posenc.checks.forward import forward, max_deviation, random_tokens
from hf_posenc.checks.registry import register_check
from hf_posenc.errors import NotExpressible, OnlyWithinTrainedLength

PROGRAM = """
import sys
from pathlib import Path
from safetensors.torch import load_file, save_file
from hf_posenc.checkpoints.load import from_pretrained
from hf_posenc.checks.forward import forward
for folder in map(Path, sys.argv[1:]):
    tokens = load_file(folder / "input.safetensors")["tokens"]
    save_file({"output": forward(from_pretrained(folder), tokens)}, folder / "output.safetensors")
"""


@register_check("saving", needs_copy=True, needs_name=True)
def saved_equals_loaded(case: Case, fresh: bool = False) -> Deviation:
    """Outputs of a patched model are bit-equal after saving and loading.

    Args:
        case: scheme and model.
        fresh: load in a new Python process.
    """
    with tempfile.TemporaryDirectory() as folder:
        before, tokens = save_case(case, folder)
        if fresh:
            load_in_fresh_process([folder])
        after = fresh_process_output(folder) if fresh else forward(from_pretrained(folder), tokens)
    value, where = max_deviation(after, before)
    return case.deviation("saving", value, f"{where}, loaded {'in a fresh process' if fresh else 'here'}")


def save_case(case: Case, folder: str) -> tuple[Tensor, Tensor]:
    """Save a patched model and an input text to a folder; returns the model's output and the text."""
    with case.patched() as model:
        tokens = random_tokens(model, case.clip_length(case.trained_length + 9, model)).contiguous()
        model.save_pretrained(folder)
        save_file({"tokens": tokens.cpu()}, Path(folder, "input.safetensors"))
        return forward(model, tokens), tokens


def load_in_fresh_process(folders: list[str]) -> None:
    """Load the models saved in these folders in a new process, and store their outputs there.

    Raises:
        RuntimeError: the process failed; with the end of its stderr.
    """
    offline = {**os.environ, "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", PROGRAM, *folders]
    done = subprocess.run(command, env=offline, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"Loading in a fresh process failed: {done.stderr[-2000:]}")


def fresh_process_output(folder: str) -> Tensor:
    """Output that the new process stored."""
    return load_file(Path(folder, "output.safetensors"))["output"]


@register_check("native_export", needs_copy=True)
def native_export_equals_patched(case: Case) -> Deviation:
    """A model exported to a RoPE type of transformers, loaded without this package, equals the patched model.

    RoPE types that depend on the text's length are compared at the trained length.
    """
    if case.rotary is None:
        return case.deviation("native_export", 0.0, "no token: the unpatched model has no RoPE")
    with case.patched() as model, TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", OnlyWithinTrainedLength)
        try:
            short = rope_parameters_of(model).short
        except NotExpressible:
            return case.deviation("native_export", 0.0, "no token: transformers has no such RoPE type")
        export_native(model, folder)
        tokens = random_tokens(model, case.trained_length if short else 2 * case.trained_length + 6)
        plain = type(model).from_pretrained(folder, dtype=model.dtype).eval()
        value, where = max_deviation(forward(plain, tokens), forward(model, tokens))
    return case.deviation("native_export", value, where)

"""Check of storage: what was saved is what is loaded, here and in a fresh process."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor

from hf_posenc.checkpoints.load import from_pretrained
from hf_posenc.checks.case import Case
from hf_posenc.checks.deviation import Deviation
from hf_posenc.checks.forward import forward, max_deviation, random_tokens
from hf_posenc.checks.registry import register_check

FRESH = """
import sys
from pathlib import Path
from safetensors.torch import load_file, save_file
from hf_posenc.checkpoints.load import from_pretrained
from hf_posenc.checks.forward import forward
for folder in map(Path, sys.argv[1:]):
    tokens = load_file(folder / "asked.safetensors")["tokens"]
    save_file({"read": forward(from_pretrained(folder), tokens)}, folder / "answered.safetensors")
"""


@register_check("saving", copies=True, named=True)
def saved_equals_loaded(pair: Case, fresh: bool = False) -> Deviation:
    """A patched model, saved and loaded, reads bit-equally.

    Args:
        pair: scheme and model.
        fresh: load in a process of its own, which shares nothing with this one.
    """
    with tempfile.TemporaryDirectory() as folder:
        before, tokens = store(pair, folder)
        if fresh:
            read_elsewhere([folder])
        after = answer_in(folder) if fresh else forward(from_pretrained(folder), tokens)
    value, where = max_deviation(after, before)
    return pair.gap("saving", value, f"{where}, loaded {'in a fresh process' if fresh else 'here'}")


def store(pair: Case, folder: str) -> tuple[Tensor, Tensor]:
    """Save a patched model and a text it is asked to read; what it read, and the text."""
    with pair.patched() as model:
        tokens = random_tokens(model, pair.length(pair.trained + 9, model)).contiguous()
        model.save_pretrained(folder)
        save_file({"tokens": tokens.cpu()}, Path(folder, "asked.safetensors"))
        return forward(model, tokens), tokens


def read_elsewhere(folders: list[str]) -> None:
    """Let a fresh process load the models stored in these folders and read their texts."""
    offline = {**os.environ, "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", FRESH, *folders]
    done = subprocess.run(command, env=offline, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"The fresh process failed. It said: {done.stderr[-2000:]}")


def answer_in(folder: str) -> Tensor:
    """What the fresh process read."""
    return load_file(Path(folder, "answered.safetensors"))["read"]

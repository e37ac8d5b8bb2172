"""Functions that the lessons share: small models with random weights, codes of positions, and a table on the screen."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from properties import PropertyTarget, targets
from torch import Tensor

from hf_posenc import patch_model
from hf_posenc.checks.case import perturb_parameters
from hf_posenc.checks.tiny_models import tiny_model
from hf_posenc.patching.state import base_model_of

SAME = 1e-4  # smaller differences between outputs of order one are rounding
FIRST_WORD = 3  # the ids before are special tokens


def schemes(*default: str) -> Sequence[str]:
    """The schemes that the command line names, or else the default ones."""
    return sys.argv[1:] or default


def show(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a table, each column as wide as its widest cell."""
    cells = [list(columns), *([f"{v:.4g}" if isinstance(v, float) else str(v) for v in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    print()


def codes(scheme: str, count: int, model: str | None = None, **options: Any) -> Tensor:
    """Codes that a scheme adds to the words at the first ``count`` positions, ``[count, width]``, float64."""
    target: PropertyTarget = targets(scheme, options, model=model)[0]
    added = target.codes(torch.arange(count))
    if added is None:
        raise SystemExit(f"Scheme {scheme!r} adds no codes to embeddings. Name one that does, such as sinusoidal.")
    return added


def patched(model: str, scheme: str, **options: Any) -> Any:
    """A small ``llama``, ``gpt2`` or ``bert`` with a scheme; all weights and learned positions are random."""
    tiny = patch_model(tiny_model(model), scheme, **options)
    perturb_parameters(tiny)
    return tiny


def tokens(words: str) -> Tensor:
    """Token ids ``[1, n]`` of a sentence; equal words have equal ids."""
    numbers: dict[str, int] = {}
    return torch.tensor([[numbers.setdefault(word.lower(), FIRST_WORD + len(numbers)) for word in words.split()]])


@torch.no_grad()
def hidden(model: Any, ids: Tensor) -> Tensor:
    """Final hidden state of every token, ``[n, width]``."""
    return base_model_of(model)[0](input_ids=ids).last_hidden_state[0]


def apart(one: Tensor, two: Tensor) -> float:
    """Largest difference between two vectors, or between two sets of vectors."""
    return float((one - two).abs().max())

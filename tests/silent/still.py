"""Entries of the list of silent failures: what transformers does silently, and what we do instead."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version

import pytest
import torch
from packaging.version import Version
from torch import Tensor, nn

from ..small_models import TRAINED

TEXT = torch.randint(3, 64, (1, 4 * TRAINED), generator=torch.Generator().manual_seed(1))


READ = {"transformers": "5.23.0", "peft": "0.21.2"}
"""Releases the entries were written down from: of an older one an entry says nothing, as it may be right there."""


@contextmanager
def silent(who: str, what: str) -> Iterator[None]:
    """What happens inside is wrong and goes unnoticed; when it is noticed, or right, the entry is out of date."""
    try:
        yield
    except BaseException as error:
        if Version(version(who)) < Version(READ.get(who, "0")):
            return
        pytest.fail(
            f"{who} is not silent any more: {what}. It says {type(error).__name__}: {str(error)[:200]}. "
            "Look whether what this package does about it can go, and then this entry."
        )


@torch.no_grad()
def logits_of(model: nn.Module, ids: Tensor = TEXT, **call: object) -> Tensor:
    return model(ids, **call).logits


def deviation(one: Tensor, other: Tensor) -> float:
    return (one - other).abs().max().item()


APART = 0.05
"""What a mistake does to logits of a few units at least."""

"""The table of docs/limits.md: which families keep texts of a row apart by ``position_ids``, unpatched and patched.

A text that is kept apart has the logits that it has alone. Where transformers changes, that table has to.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from hf_posenc import patch_model
from hf_posenc.errors import MaskMismatch

from .test_several_axes import OPTIONS, text_model
from .tiny import tiny

PAGE = Path(__file__).parents[2] / "docs/limits.md"
FIRST, SECOND = 9, 7
ALONE = 1e-4  # of the largest logit


class Row(NamedTuple):
    """What the table says of a family."""

    family: str
    encoder: bool
    base: bool
    unpatched: str
    patched: str


def rows() -> list[Row]:
    table = PAGE.read_text().split("<!-- packed families: begin -->")[1].split("<!-- packed families: end -->")[0]
    found = []
    for line in table.strip().splitlines()[2:]:
        kind, unpatched, patched = (cell.strip() for cell in line.strip("|").split("|"))
        encoder, base = kind.startswith("encoders"), "base model is to be called" in kind
        found += [Row(name, encoder, base, unpatched, patched) for name in re.findall(r"`([\w-]+)`", kind)]
    return found


def model_of(row: Row) -> Any:
    if row.family in OPTIONS:
        return text_model(row.family)
    return tiny(row.family, masked=True) if row.encoder else tiny(row.family)


def base_of(model: Any) -> Any:
    """A model below its head."""
    return model.get_decoder() if model.config.model_type in ("mvp", "trocr") else model.base_model


def verdict(model: Any, row: Row) -> str:
    """Whether the second text of a row has the logits that it has alone, or the call is refused."""
    tokens = torch.randint(3, 90, (1, FIRST + SECOND), generator=torch.Generator().manual_seed(5))
    positions = torch.cat([torch.arange(FIRST), torch.arange(SECOND)])[None]
    model = base_of(model) if row.base else model
    call = {} if row.encoder else {"use_cache": False}
    with torch.no_grad():
        alone = model(tokens[:, FIRST:], **call)[0]
        try:
            packed = model(tokens, position_ids=positions, **call)[0][:, FIRST:]
        except MaskMismatch:
            return "refused"
    return "apart" if bool((packed - alone).abs().max() / alone.abs().max() <= ALONE) else "mixed"


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["host", "alibi"])
@pytest.mark.parametrize("row", rows(), ids=lambda row: f"{row.family}-{row.encoder:d}")
def test_patched(row: Row, scheme: str) -> None:
    assert verdict(patch_model(model_of(row), scheme), row) == row.patched


@pytest.mark.parametrize("family", ["gpt_oss", "opt", "bert"])
def test_texts_are_cached_by_nobody(family: str) -> None:
    """By default as without a cache, which a row of several texts cannot be continued from; and refused with one."""
    model = patch_model(tiny(family), "host")
    tokens = torch.randint(3, 90, (1, FIRST + SECOND), generator=torch.Generator().manual_seed(5))
    positions = torch.cat([torch.arange(FIRST), torch.arange(SECOND)])[None]
    with torch.no_grad():
        found = model(tokens, position_ids=positions)
        expected = model(tokens, position_ids=positions, use_cache=False)
        with pytest.raises(MaskMismatch, match="KV cache would mix"):
            model(tokens, position_ids=positions, use_cache=True)
    assert getattr(found, "past_key_values", None) is None
    assert torch.equal(found[0], expected[0])

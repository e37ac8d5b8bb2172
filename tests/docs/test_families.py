"""The page of families names every family of the transformers it was measured on."""

from __future__ import annotations

from pathlib import Path

import pytest
import transformers
from transformers.models.auto import modeling_auto

PAGE = Path(__file__).parents[2] / "docs" / "families.md"


def test_every_family_is_named() -> None:
    text = PAGE.read_text(encoding="utf-8")
    if f"transformers {transformers.__version__} " not in text:
        pytest.skip(f"the page was measured on another version than {transformers.__version__}")
    rows = {line.split("|")[1].strip().removesuffix(" (attention layers)") for line in text.splitlines() if "|" in line}
    names = {*modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, *modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES}
    assert names <= rows, sorted(names - rows)

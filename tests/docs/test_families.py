"""The survey of families has every family of the transformers it was measured on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import transformers
from transformers.models.auto import modeling_auto

DATA = Path(__file__).parents[2] / "docs" / "families.json"


def test_every_family_is_named() -> None:
    survey = json.loads(DATA.read_text(encoding="utf-8"))
    if survey["transformers"] != transformers.__version__:
        pytest.skip(f"it was measured on transformers {survey['transformers']}")
    names = {*modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, *modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES}
    assert names <= {one["model_type"] for one in survey["families"]}

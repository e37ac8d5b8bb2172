"""The scheme config of a checkpoint is validated field by field."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hf_posenc import from_pretrained, patch_model
from hf_posenc.errors import CheckpointMismatch
from hf_posenc.patching.scheme_config import SchemeConfig

from ..small_models import edit

GOOD: dict[str, Any] = {
    "format": 1,
    "scheme": [{"name": "yarn", "options": {"beta_fast": 16.0}}, {"name": "logn", "options": {}}],
    "layers": {"1": [{"name": "pi", "options": {}}]},
    "trained_length": 16,
    "target_length": 64,
    "host_length": 16,
}


def test_a_valid_scheme_config_is_read_and_written_unchanged() -> None:
    assert SchemeConfig.read(GOOD, "here").to_json() == GOOD


def test_scheme_configs_that_do_not_fit_the_model(make_model, tmp_path) -> None:
    """Well-formed, but for another model: a scheme that needs a rotation, a layer that is not there."""
    patch_model(make_model("bert"), "alibi", factor=4).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for change in (
        {"scheme": [{"name": "rerope", "options": {}}]},
        {"layers": {"7": [{"name": "alibi", "options": {}}]}},
    ):
        edit(tmp_path, position_scheme={**config["position_scheme"], **change})
        with pytest.raises(CheckpointMismatch, match="does not fit its BertForMaskedLM"):
            from_pretrained(tmp_path)

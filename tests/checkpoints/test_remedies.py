"""What an error recommends can be done where it is printed, and does not lead back to the error."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hf_posenc import from_pretrained
from hf_posenc.checkpoints.checkpoint import Checkpoint
from hf_posenc.errors import CheckpointMismatch, UnsupportedModel
from hf_posenc.patches import registry


def test_a_model_type_with_an_adapter_is_not_told_to_choose_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry._ADAPTERS, "mine", "nowhere:Adapter")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mine"}))
    with pytest.raises(UnsupportedModel, match="although an adapter is registered for it") as refused:
        Checkpoint.open(tmp_path).hf_config()
    assert "AutoConfig.register('mine', …)" in str(refused.value)
    assert "llama" not in str(refused.value)


def test_a_class_is_asked_for_where_it_can_be_given(tmp_path: Path) -> None:
    """A command has no model_class=; a configuration has architectures everywhere."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "architectures": ["NoSuchModel"]}))
    with pytest.raises(CheckpointMismatch, match=r"Name one in its config\.json, or load it in Python with"):
        from_pretrained(tmp_path)

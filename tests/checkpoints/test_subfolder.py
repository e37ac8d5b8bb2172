"""The layer count of a model in a subfolder is read there, not in the folder above."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import LlamaForCausalLM

from hf_posenc import from_pretrained
from hf_posenc.checks.tiny_models import tiny_model
from hf_posenc.errors import CheckpointMismatch


def test_layers_are_counted_where_the_model_is(tmp_path: Path) -> None:
    model = tiny_model("llama")
    model.save_pretrained(tmp_path)
    config = type(model.config)(**{**model.config.to_dict(), "num_hidden_layers": 1})
    LlamaForCausalLM(config).save_pretrained(tmp_path / "small")
    assert len(from_pretrained(tmp_path, subfolder="small").model.layers) == 1
    (tmp_path / "config.json").write_bytes((tmp_path / "small" / "config.json").read_bytes())
    with pytest.raises(CheckpointMismatch, match="of 2 layers"):
        from_pretrained(tmp_path)
    assert len(from_pretrained(tmp_path, config=config).model.layers) == 1, "what the error says to do"

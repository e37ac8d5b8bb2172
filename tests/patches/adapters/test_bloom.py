"""BLOOM: ALiBi by the released rule for any number of heads, the residual inside attention, the trained length."""

from __future__ import annotations

from transformers import BloomConfig

from hf_posenc import describe, from_pretrained, patch_model, unpatch_model
from hf_posenc.patches.bloom import BloomAdapter

from .inline import ids, tiny_inline

TEXT = ids()


def test_trained_length(tmp_path) -> None:
    """Its configuration need not have one: ``seq_length`` if it is there, else 2,048; saved and loaded alike."""
    assert BloomAdapter().trained_length(BloomConfig()) == 2048
    model = tiny_inline("bloom")
    assert not hasattr(model.config, "max_position_embeddings")
    patch_model(model, "yarn", factor=2)
    report = describe(model)
    assert (report.trained_length, report.target_length, model.config.max_position_embeddings) == (32, 64, 64)
    model.save_pretrained(tmp_path)
    loaded = from_pretrained(tmp_path)
    assert describe(loaded).to_dict() == report.to_dict()
    unpatch_model(model)
    assert not hasattr(model.config, "max_position_embeddings")

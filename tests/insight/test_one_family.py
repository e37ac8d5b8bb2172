"""`list --models --model` takes every model type of transformers, also those without a language-model head."""

from __future__ import annotations

import pytest

from hf_posenc.insight import families as survey


@pytest.mark.slow
@pytest.mark.parametrize("model_type", ["qwen2_5_vl", "clip"])
def test_a_type_that_reads_images(model_type: str) -> None:
    (found,) = survey.one(model_type)
    assert (found.model_type, found.verdict) == (model_type, "exact")
    assert found.schemes > 40

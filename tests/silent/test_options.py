"""Options that transformers accepts silently, and that we refuse."""

from __future__ import annotations

import pytest
import torch
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from hf_posenc import patch_model
from hf_posenc.errors import PosEncError
from hf_posenc.patching.state import scheme_of

from .still import APART, TRAINED, deviation, llama, logits_of, scaled, silent

YARN = {"rope_type": "yarn", "original_max_position_embeddings": TRAINED}
ACCEPTED = {
    "a negative factor": ({**YARN, "factor": -2.0}, "yarn", {"factor": -2.0}),
    "a factor below 1": ({**YARN, "factor": 0.5}, "yarn", {"factor": 0.5}),
    "a factor that is no number": ({**YARN, "factor": float("nan")}, "yarn", {"factor": float("nan")}),
    "an infinite factor": ({**YARN, "factor": float("inf")}, "yarn", {"factor": float("inf")}),
    "an unknown option": ({**YARN, "factor": 4.0, "fator": 8}, "yarn", {"factor": 4.0, "fator": 8}),
    "bounds the wrong way round": (
        {**YARN, "factor": 4.0, "beta_fast": 1.0, "beta_slow": 32.0}, "yarn",
        {"factor": 4.0, "beta_fast": 1.0, "beta_slow": 32.0},
    ),
    "one rescale factor for all pairs": (
        {"rope_type": "longrope", "original_max_position_embeddings": TRAINED, "factor": 4.0, "short_factor": [1.0],
         "long_factor": [2.0]},
        "longrope", {"factor": 4.0, "short_factor": [1.0], "long_factor": [2.0]},
    ),
}  # fmt: skip


@pytest.mark.parametrize("entry", ACCEPTED.values(), ids=list(ACCEPTED))
def test_accepted_by_transformers_and_refused_here(entry: tuple) -> None:
    rope, scheme, options = entry
    with silent("transformers", f"rope_parameters={rope} build a model that answers"):
        assert logits_of(scaled(**rope)).shape == (1, 4 * TRAINED, 64)
    model = llama()
    before = logits_of(model)
    with pytest.raises(PosEncError):
        patch_model(model, scheme, **options)
    assert torch.equal(logits_of(model), before)


@pytest.mark.parametrize("theta", [-1.0, 0.0])
def test_a_base_that_gives_no_frequencies(theta: float) -> None:
    rope = {"rope_type": "default", "rope_theta": theta}
    with silent("transformers", f"rope_theta={theta} builds a model whose logits are not finite"):
        assert not logits_of(llama(rope_parameters=rope)).isfinite().all()
    with pytest.raises(PosEncError):
        patch_model(llama(rope_parameters=rope), "yarn", factor=4)


def test_a_length_below_zero() -> None:
    with silent("transformers", "max_position_embeddings=-1 builds a model"):
        assert logits_of(llama(max_position_embeddings=-1)).isfinite().all()
    with pytest.raises(PosEncError):
        patch_model(llama(max_position_embeddings=-1), "yarn", factor=4)


def test_frequencies_lose_precision() -> None:
    """``model.to(bfloat16)`` rounds the buffer; at a far position the rotation is another one."""
    config = llama(max_position_embeddings=32768).config
    exact = LlamaRotaryEmbedding(config).inv_freq
    with silent("transformers", "a model in bfloat16 turns far positions by angles that are radians off"):
        rounded = LlamaRotaryEmbedding(config).to(torch.bfloat16).inv_freq
        assert ((rounded.float() - exact).abs() * 32768).max() > 1.0
    model = patch_model(llama().to(torch.bfloat16), "rope", factor=1)
    kept = scheme_of(model).rotation().frequencies
    whole = [10000.0 ** (-2 * m / 8) for m in range(4)]
    assert max(abs(a - b) * 32768 for a, b in zip(kept, whole, strict=True)) < 1e-9


def test_positions_between_whole_numbers() -> None:
    halves = torch.arange(4 * TRAINED)[None] / 2
    with silent("transformers", "position_ids that are no whole numbers rotate by fractions"):
        assert deviation(logits_of(llama(), position_ids=halves), logits_of(llama())) > APART
    for scheme in ("t5", "learned_interp"):
        with pytest.raises((PosEncError, ValueError)):
            logits_of(patch_model(llama(), scheme, factor=4), position_ids=halves)

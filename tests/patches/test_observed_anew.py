"""What is observed of a model is kept for others like it, and for those alone."""

from __future__ import annotations

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from hf_posenc import describe, patch_model


def scaled_to(length: int) -> Qwen2ForCausalLM:
    """A model whose YaRN without a factor is stretched to ``max_position_embeddings``."""
    torch.manual_seed(0)
    rope = {"rope_type": "yarn", "factor": None, "rope_theta": 10_000.0, "original_max_position_embeddings": 64}
    config = Qwen2Config(
        vocab_size=97, hidden_size=64, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=2,
        intermediate_size=64, max_position_embeddings=length, initializer_range=0.3, bos_token_id=0, eos_token_id=0,
        rope_parameters=rope,
    )  # fmt: skip
    return Qwen2ForCausalLM(config).eval()


@pytest.mark.parametrize("lengths", [(256, 1024), (1024, 256)])
def test_models_that_differ_in_their_length_alone_keep_their_rotations(lengths: tuple[int, int]) -> None:
    ids = torch.randint(97, (1, 60), generator=torch.Generator().manual_seed(0))
    unpatched = []
    for length in lengths:
        model = scaled_to(length)
        with torch.no_grad():
            unpatched.append(model(ids).logits)
            after = patch_model(model, "host")(ids).logits
        assert describe(model).scheme == "host"
        torch.testing.assert_close(after, unpatched[-1], atol=1e-4, rtol=1e-4)
    assert (unpatched[0] - unpatched[1]).abs().max() > 0.1, "control: their rotations differ"

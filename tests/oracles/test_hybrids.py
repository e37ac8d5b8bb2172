"""Models whose layers differ: SmolLM3, Cohere 2 and Llama 4, with the weights of patched Llamas."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    Cohere2Config,
    Cohere2Model,
    DynamicCache,
    Llama4ForCausalLM,
    Llama4TextConfig,
    SmolLM3Config,
    SmolLM3ForCausalLM,
)

from hf_posenc import patch_model
from hf_posenc.core.rotation import weight_rows

from . import models, naive
from .models import HEAD_DIM, HEADS, KV_HEADS, TRAINED, VOCABULARY, WIDTH

LAYERS = 4
LENGTH = 2 * TRAINED
LIMIT = 2e-4  # logits of deviation 1 in float32 behind four layers of sharp softmax
SHAPE = {
    "hidden_size": WIDTH, "intermediate_size": 96, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS, "vocab_size": VOCABULARY, "max_position_embeddings": LENGTH, "pad_token_id": 0,
    "tie_word_embeddings": False,
}  # fmt: skip
THETA = {"rope_type": "default", "rope_theta": 10_000.0}


def llama() -> Any:
    return models.llama(num_hidden_layers=LAYERS)


def hybrid(**options: Any) -> Any:
    return patch_model(llama(), "irope", target_length=LENGTH, **options)


@pytest.mark.parametrize("interval", [2, 4])
def test_llama_becomes_smollm3(interval: int) -> None:
    """A whole SmolLM3: every fourth layer without positions."""
    config = SmolLM3Config(**SHAPE, no_rope_layer_interval=interval, rope_parameters=THETA, rms_norm_eps=1e-6)
    theirs, ids = SmolLM3ForCausalLM(config).eval(), models.text(LENGTH)
    theirs.load_state_dict(llama().state_dict())
    expected = models.logits(theirs, ids)
    assert (models.logits(hybrid(interval=interval), ids) - expected).abs().max() <= LIMIT
    assert (models.logits(hybrid(interval=3), ids) - expected).abs().max() > 100 * LIMIT  # control


def interleaved(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weights for models that rotate neighbouring channels: Llama's halves, dealt like cards."""
    heads = {"q_proj.weight": HEADS, "k_proj.weight": KV_HEADS}

    def converted(name: str, weight: Tensor) -> Tensor:
        kind = next((kind for kind in heads if name.endswith(kind)), None)
        rows = None if kind is None else weight_rows("interleaved", heads=heads[kind], head_dim=HEAD_DIM)
        return weight if rows is None else weight[rows]

    return {name: converted(name, weight) for name, weight in weights.items()}


def llama4(**more: Any) -> Llama4ForCausalLM:
    """Dense, keys not cut into chunks, with the weights of `llama`."""
    config = Llama4TextConfig(
        **SHAPE, intermediate_size_mlp=96, moe_layers=[], attention_chunk_size=4 * LENGTH, use_qk_norm=False,
        head_dim=HEAD_DIM, rope_parameters=THETA, rms_norm_eps=1e-6, **more,
    )  # fmt: skip
    assert config.no_rope_layers == [1, 1, 1, 0]
    model = Llama4ForCausalLM(config).eval()
    renamed = {name.replace(".mlp.", ".feed_forward."): weight for name, weight in llama().state_dict().items()}
    model.load_state_dict(interleaved(renamed))
    return model


def test_llama_becomes_llama4() -> None:
    """Three layers that rotate, one that does not."""
    ids = models.text(LENGTH)
    expected = models.logits(llama4(attn_temperature_tuning=False), ids)
    assert (models.logits(hybrid(), ids) - expected).abs().max() <= LIMIT
    rotating = models.logits(patch_model(llama(), "rope", target_length=LENGTH), ids)
    assert (rotating - expected).abs().max() > 100 * LIMIT  # control
    assert (models.logits(hybrid(global_scheme="rope"), ids) - rotating).abs().max() <= LIMIT


@pytest.mark.parametrize("layer", range(LAYERS))
def test_attention_becomes_cohere2(layer: int) -> None:
    """One layer at a time, as the blocks around them differ: a window with rotation, or neither."""
    window = 9
    config = Cohere2Config(**SHAPE, sliding_window=window, rope_parameters=THETA, attention_bias=False)
    cohere, ours = Cohere2Model(config).eval(), hybrid(window=window).model.layers[layer].self_attn
    theirs = cohere.layers[layer].self_attn
    plain = llama().model.layers[layer].self_attn.state_dict()
    theirs.load_state_dict(interleaved(plain))
    hidden = torch.randn(1, LENGTH, WIDTH, generator=torch.Generator().manual_seed(0))
    positions = torch.arange(LENGTH)[None]
    distance = naive.distances(LENGTH)
    seen = (distance >= 0) & (distance < (window if layer < 3 else LENGTH))
    with torch.no_grad():
        turns = cohere.rotary_emb(hidden, positions)
        expected, _ = theirs(hidden, turns, seen[None, None])
        mixed, _ = ours(hidden, position_ids=positions)
        everything, _ = theirs(hidden, turns, (distance >= 0)[None, None])
    assert (mixed - expected).abs().max() <= LIMIT
    if layer < 3:  # control
        assert (everything - expected).abs().max() > 100 * LIMIT


@pytest.mark.parametrize("cut", [1, 8, 9, 10, TRAINED])
@pytest.mark.parametrize("step", [1, 7])
def test_local_layers_evict_keys_and_global_ones_do_not(cut: int, step: int) -> None:
    """Each layer caches what it can still see, and the text goes on as if all of it were there."""
    model, ids, window = hybrid(window=9), models.text(LENGTH), 9
    cache = DynamicCache(config=model.config)
    pieces = models.in_pieces(model, ids[None], *range(cut, LENGTH, step), LENGTH, cache=cache)[0]
    assert (pieces - models.logits(model, ids)).abs().max() <= LIMIT
    assert [layer.keys.shape[2] for layer in cache.layers] == [window - 1] * 3 + [LENGTH]

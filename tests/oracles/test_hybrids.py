"""Layers that differ: SmolLM3, Cohere 2, Llama 4 and native forms against the family's own class; DroPE as released."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    CONFIG_MAPPING,
    Cohere2Config,
    Cohere2Model,
    Llama4ForCausalLM,
    Llama4TextConfig,
    PreTrainedModel,
    SmolLM3Config,
    SmolLM3ForCausalLM,
)

from hf_posenc import patch_model, unpatch_model
from hf_posenc.core.context import PositionContext
from hf_posenc.core.rotation import rotate, table
from hf_posenc.errors import OptionOutOfRange, SchemeNotDefined
from hf_posenc.patching.state import base_model_of
from hf_posenc.schemes.attention_scale.ssmax import SSMax
from hf_posenc.schemes.rotary.rotary import RoPE

from ..families.tiny import tiny, tokens
from . import models, naive
from .models import HEAD_DIM, HEADS, KV_HEADS, TRAINED, VOCABULARY, WIDTH
from .naive import Positions, rope

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
        return weight if kind is None else models.interleaved(weight, heads[kind])

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


POSITIONS = torch.arange(300)[None]


def logits(model: PreTrainedModel, ids: Tensor) -> Tensor:
    with torch.no_grad():
        return model(input_ids=ids, use_cache=False).logits


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def test_ssmax_is_the_query_scale_of_mistral_large_4() -> None:
    module = pytest.importorskip("transformers.models.mistral_large4.modeling_mistral_large4")
    theirs = module.MistralLarge4TextSoftmaxScaling(HEADS)
    theirs.scale.copy_(drawn(HEADS))
    theirs.bias.copy_(drawn(HEADS, seed=1))
    ours, query = SSMax(models.geometry(), s_init=0, bias=1), drawn(1, HEADS, 300, HEAD_DIM, seed=2)
    ctx = PositionContext(POSITIONS, POSITIONS, causal=True, contiguous=True)
    assert torch.equal(ours.row_scale(ctx), torch.ones(1, HEADS, 300))  # as theirs starts
    ours.load_state_dict({"s": theirs.scale, "b": theirs.bias})
    expected = theirs(query, POSITIONS, head_dim_first=True)
    assert torch.allclose(query * ours.row_scale(ctx)[..., None], expected, atol=1e-5)
    one_later = PositionContext(POSITIONS + 1, POSITIONS + 1, causal=True, contiguous=True)
    assert not torch.allclose(query * ours.row_scale(one_later)[..., None], expected, atol=1e-2)  # control


@torch.no_grad()
def test_learned_frequencies_are_those_of_mistral_large_4() -> None:
    module = pytest.importorskip("transformers.models.mistral_large4.modeling_mistral_large4")
    config = module.MistralLarge4TextConfig(qk_rope_head_dim=HEAD_DIM)
    config.rope_parameters = {"rope_type": "default", "rope_theta": 10_000.0}
    theirs, ours = module.MistralLarge4TextRotaryEmbedding(config), RoPE(
        models.geometry(), learn_freq=True, layout="interleaved"
    )  # fmt: skip
    theirs.alpha.copy_(0.1 * drawn(HEAD_DIM // 2))
    ours.load_state_dict({"correction": theirs.alpha})
    key = drawn(1, HEADS, 300, HEAD_DIM)
    split, _ = module.apply_rotary_pos_emb_interleave(key, None, *theirs(key, POSITIONS))
    expected = torch.stack(split.chunk(2, -1), dim=-1).flatten(-2)  # pairs side by side again
    rotation = ours.rotation()
    assert torch.allclose(rotate(key, rotation, table(rotation, POSITIONS)), expected, atol=1e-4)
    ours.reset_parameters()
    rotation = ours.rotation()
    assert not torch.allclose(rotate(key, rotation, table(rotation, POSITIONS)), expected, atol=1e-1)  # control


GLOBAL = {"full_attention": {"rope_type": "default", "rope_theta": 10_000.0}}
LOCAL = {"sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0}}


@pytest.mark.parametrize(
    ("family", "native", "scheme", "options", "other"),
    [
        (
            "gemma4_text", {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1_000_000.0},
            "proportional", {"p": 0.25, "base": 1_000_000.0}, {"p": 0.5},
        ),
        (
            "laguna", {"rope_type": "default", "partial_rotary_factor": 0.5, "rope_theta": 500_000.0},
            "partial", {"fraction": 0.5, "base": 500_000.0}, {"base": 10_000.0},
        ),
        (
            "gemma3_text", {"rope_type": "default", "rope_theta": 1_000_000.0},
            "abf", {"base": 1_000_000.0}, {"base": 10_000.0},
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_global_layers_of_their_own(
    family: str, native: dict[str, Any], scheme: str, options: dict[str, Any], other: dict[str, Any]
) -> None:
    """θ, the rotated width and p-RoPE of the layers that see all keys; local ones keep the model's rotation."""
    if family not in CONFIG_MAPPING:
        pytest.skip(f"no {family} in this transformers")
    kinds = {"layer_types": ["sliding_attention"] * 3 + ["full_attention"], "sliding_window": 8}
    theirs = tiny(family, rope_parameters=LOCAL | {"full_attention": native}, **kinds)
    plain, ids = tiny(family, rope_parameters=LOCAL | GLOBAL, **kinds), tokens(40)
    plain.load_state_dict(theirs.state_dict())
    expected = logits(theirs, ids)
    patch_model(plain, scheme, layers={":3": "host"}, **options)
    assert (logits(plain, ids) - expected).abs().max() <= 1e-4 * expected.std()
    patch_model(unpatch_model(plain), scheme, layers={":3": "host"}, **(options | other))
    assert (logits(plain, ids) - expected).abs().max() > 1e-2 * expected.std()  # control


CLOSE = 1e-4  # logits of deviation 1 in float32 behind two layers of sharp softmax, as in test_whole_models
EPS = 1e-6


@pytest.mark.parametrize("kept", [[3], [0, 1], [0, 1, 2, 3]])
def test_kept_layers_rotate(kept: list[int]) -> None:
    ids, text, layer = models.text(LENGTH), naive.causal(LENGTH), iter(range(4))
    rotated = replace(text, frequencies=rope(HEAD_DIM))

    class Alternating(Positions):
        def mix(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            return (rotated if next(layer) in kept else text).mix(query, key, value)

    expected = naive.llama(models.llama(num_hidden_layers=4), ids, Alternating(text.seen, text.distance))
    patched = patch_model(models.llama(num_hidden_layers=4), "drope", keep_layers=kept, factor=2)
    assert (models.logits(patched, ids) - expected).abs().max() <= CLOSE
    everywhere = patch_model(models.llama(num_hidden_layers=4), "drope", factor=2)  # control
    assert (models.logits(everywhere, ids) - expected).abs().max() > 100 * CLOSE


@pytest.mark.parametrize("which", ["q", "k", "qk"])
@pytest.mark.parametrize("model", ["llama", "gpt2"])
def test_norms_over_all_heads(which: str, model: str) -> None:
    """The released code norms a token's whole query (and key) before it is cut into heads; each layer has its gains."""
    build, formula = models.MODELS[model]
    ids, text = models.text(LENGTH), naive.causal(LENGTH)
    patched = patch_model(build(), "drope", qk_norm=which, factor=2)
    gains = {n: w for n, w in patched.named_parameters() if "posenc." in n}
    assert len(gains) == 2 * len(which)
    assert all(torch.equal(w, torch.ones_like(w)) for w in gains.values())
    for number, weight in enumerate(gains.values()):
        nn.init.normal_(weight, mean=2.0, generator=torch.Generator().manual_seed(number))
    _, adapter = base_model_of(patched)
    layers = iter([m.scheme for m in base_model_of(patched)[0].modules() if "posenc_owner" in m.__dict__])
    assert adapter.name == model

    class Normed(Positions):
        def mix(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            scheme = next(layers)
            return super().mix(normed(query, scheme.query_norm), normed(key, scheme.key_norm), value)

    def normed(x: Tensor, norm: Any) -> Tensor:
        if norm is None:
            return x
        flat = x.transpose(0, 1).flatten(1)
        flat = norm.weight.detach().double() * flat / (flat.square().mean(-1, keepdim=True) + EPS).sqrt()
        return flat.unflatten(1, (len(x), -1)).transpose(0, 1)

    expected = formula(build(), ids, Normed(text.seen, text.distance))
    assert (models.logits(patched, ids) - expected).abs().max() <= CLOSE
    plain = formula(build(), ids, text)  # control
    assert (plain - expected).abs().max() > 100 * CLOSE


def test_softmax_scale_multiplies_the_logits_of_dropped_layers() -> None:
    ids, text = models.text(LENGTH), naive.causal(LENGTH)
    patched = patch_model(models.llama(), "drope", softmax_scale=1.3, factor=2)
    assert (
        models.logits(patched, ids) - naive.llama(models.llama(), ids, replace(text, logit_scale=1.3))
    ).abs().max() <= CLOSE


def test_what_cannot_be_dropped_is_refused() -> None:
    with pytest.raises(OptionOutOfRange, match=r"among 0 … 1, got \[2\]"):
        patch_model(models.llama(), "drope", keep_layers=[2])
    with pytest.raises(OptionOutOfRange, match="in a table before all layers"):
        patch_model(models.gpt2(), "drope", keep_layers=[0])
    with pytest.raises(SchemeNotDefined, match="needs a decoder"):
        patch_model(models.bert(), "drope")

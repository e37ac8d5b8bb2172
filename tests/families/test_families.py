"""Families of transformers on tiny random models: a patch leaves what it must, and computes the same by every way.

By default twelve families of different attention; `pytest --whole -m full tests/families` takes all of transformers.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import CONFIG_MAPPING, PreTrainedModel
from transformers.models.auto import modeling_auto

from hf_posenc import describe, from_pretrained, patch_model, unpatch_model
from hf_posenc.errors import MaskMismatch, SchemeNotDefined, UnsupportedModel
from hf_posenc.patching.state import scheme_of

from .tiny import LENGTH, cached, gap, logits, padded, tiny, tiny_encoder_decoder, tokens

DECODERS = [
    *("mistral", "qwen3", "gemma2", "gemma3_text", "gpt_oss", "phi", "cohere", "deepseek_v3", "smollm3", "gpt_neox"),
    *("opt", "bloom", "mpt", "falcon", "roberta"),
]
OTHER_DECODERS = sorted(set(modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES) - {*DECODERS, "bert", "gpt2", "llama"})
ENCODERS = ["roberta", "modernbert", "megatron-bert", "rembert", "squeezebert", "xlm", "tapas"]
OTHER_ENCODERS = sorted(set(modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES) - {*ENCODERS, "bert"})

SCHEMES: dict[str, dict[str, Any]] = {  # at least one for every hook of a scheme
    "yarn": {"factor": 2, "trained_length": LENGTH},  # which a family that is scaled already needs
    "alibi": {},
    "rerope": {"trained_length": 16},
    "self_extend": {"trained_length": 16, "factor": 4},
    "t5": {},
    "none": {},
    "window": {"size": 12},
    "sinks": {"sinks": 3, "recent": 9},
    "learned": {},
    "logn": {"trained_length": 16},
    "fox": {},
}
WINDOW_OF_THE_MASK = ("doge", "phimoe")  # their attention is not told of it, so that no cache may drop keys
NUMBERS_PADDING = ("fuyu", "gemma3", "gemma4")  # models around a decoder that number its tokens, whatever the mask
MAKES_MASKS = ("gemma3", "gemma4")  # for the decoder inside, which does not say that a layer has dropped keys
IN_FLOAT64 = ("gemma4", "gemma4_text")  # float32 moves their logits by 3e-5
CLOSE = 2e-5  # of the spread of logits, float32: a few hundred times its rounding; 8 digits of mixed sums differ
OTHER_SCHEMES = [name for name in SCHEMES if name != "yarn"]


def families(names: list[str], others: list[str]) -> list[Any]:
    return [*names, *(pytest.param(name, marks=pytest.mark.full) for name in others)]


decoders = pytest.mark.parametrize("name", families(DECODERS, OTHER_DECODERS))
encoders = pytest.mark.parametrize("name", families(ENCODERS, OTHER_ENCODERS))


@functools.lru_cache
def refusal(name: str, *, masked: bool = False) -> str | None:
    """Why a family cannot be patched; None where it can."""
    model = built(name, masked=masked)
    try:
        patch_model(model, "host")
    except UnsupportedModel as error:
        return str(error)
    return None


def built(name: str, *, masked: bool = False) -> PreTrainedModel:
    """A tiny model of a family that can be patched; else the test is skipped, with the reason."""
    try:
        model = tiny(name, masked=masked, **({} if name in WINDOW_OF_THE_MASK else {"sliding_window": 8}))
    except Exception as error:  # whatever a constructor says of sizes that are not for it
        pytest.skip(f"{name} has no tiny model of these sizes: {type(error).__name__}: {str(error)[:100]}")
    return model.double() if name in IN_FLOAT64 else model


def supported(name: str, *, masked: bool = False) -> PreTrainedModel:
    reason = refusal(name, masked=masked)
    if reason is not None:
        pytest.skip(f"{name} is refused: {reason[:200]}")
    return built(name, masked=masked)


def continues(model: PreTrainedModel, ids: Tensor, stock: Tensor, chunk: int = 1) -> bool:
    """Whether an unpatched model continues a text from its cache, with room for our rounding beside its own.

    Some begin anew with every chunk, or have no cache.
    """
    if getattr(model(input_ids=ids[:, :2]), "past_key_values", None) is None:
        return False
    return gap(cached(model, ids, 12, chunk), stock) < CLOSE / 2


def mixes_by_attention(model: PreTrainedModel) -> bool:
    """Whether attention alone mixes tokens: no state-space, linear or convolution layers."""
    return not any(hasattr(module, "conv1d") or isinstance(module, torch.nn.Conv1d) for module in model.modules())


def assert_close(found: Tensor, wanted: Tensor) -> None:
    assert gap(found, wanted) < CLOSE, f"{gap(found, wanted):.1e} of the spread"


@decoders
def test_the_models_own_positions(name: str) -> None:
    """Measured, switched off and put back by our attention, they give the model's own logits past its windows."""
    model, ids = supported(name), tokens(40)
    stock = logits(model, ids, use_cache=False)
    by_steps = continues(model, ids, stock)
    patch_model(model, "host")
    assert_close(logits(model, ids, use_cache=False), stock)
    if by_steps:
        assert_close(cached(model, ids, 12), stock)
    unpatch_model(model)
    assert torch.equal(logits(model, ids, use_cache=False), stock)
    assert not [name for module in model.modules() for name in vars(module) if name.startswith("posenc")]


UNUSUAL = [  # layers that call their attention in ways of their own, each with a scheme under which it would show
    ("stablelm", "sinks"),  # hands on no keyword, so that attention looks its forward pass up
    ("nemotron", "fox"),
    ("zamba", "alibi"),  # attention takes twice the width, and is told the number of its layer in each call
    ("zamba2", "t5"),
    ("zaya", "self_extend"),  # a dictionary of masks, one of them for a convolution; layers with a window beside
    ("zaya", "sinks"),
    ("beam", "alibi"),  # a factor of positions, and layers that count themselves
]
READ = [pytest.param(name, "yarn") for name in DECODERS] + [pytest.param(*pair) for pair in UNUSUAL]
READ += [pytest.param(name, scheme, marks=pytest.mark.slow) for name in DECODERS for scheme in OTHER_SCHEMES]
READ += [pytest.param(name, scheme, marks=pytest.mark.full) for name in OTHER_DECODERS for scheme in SCHEMES]


@pytest.mark.parametrize(("name", "scheme"), READ)
def test_every_way_to_read_a_text(name: str, scheme: str) -> None:
    """At once, token by token, in chunks, and with padding before it."""
    model, ids = supported(name), tokens(40)
    text, mask = padded(ids)
    stock = logits(model, ids, use_cache=False)
    by_steps, in_chunks = continues(model, ids, stock), continues(model, ids, stock, chunk=4)
    shifted = logits(model, text, attention_mask=mask, use_cache=False)[:, 5:]
    numbers_padding = name in NUMBERS_PADDING or gap(shifted, stock) > CLOSE  # as BART
    try:
        patch_model(model, scheme, **SCHEMES[scheme])
    except SchemeNotDefined as error:
        pytest.skip(str(error)[:200])
    whole = logits(model, ids, use_cache=False)
    if by_steps:
        assert_close(cached(model, ids, 12), whole)
    if name in MAKES_MASKS and scheme in ("window", "sinks"):
        with pytest.raises(MaskMismatch):
            cached(model, ids, 12, chunk=4)
    elif in_chunks:
        assert_close(cached(model, ids, 12, chunk=4), whole)
    reads_table = scheme_of(model).keeps_table or not scheme_of(model).replaces_host
    if numbers_padding and (reads_table or name in NUMBERS_PADDING):
        return
    if by_steps and mixes_by_attention(model):  # other layers read padding as they read tokens
        assert_close(logits(model, text, attention_mask=mask, use_cache=False)[:, 5:], whole)
        assert_close(cached(model, text, 17, mask=mask)[:, 5:], whole)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["qwen3", "gemma2", "gpt_neox", "deepseek_v3", "bart", "modernbert"])
def test_saved_and_loaded_in_half_precision(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    """transformers builds a model with its dtype as torch's default one, in which no rotation could be measured."""
    model = tiny_encoder_decoder(name) if name == "bart" else built(name, masked=name == "modernbert")
    model, ids = patch_model(model.to(dtype), "alibi+yarn" if name == "qwen3" else "alibi", factor=2), tokens(20)
    model.save_pretrained(tmp_path)
    loaded = from_pretrained(tmp_path)
    assert loaded.dtype == dtype
    with torch.no_grad():
        assert torch.equal(loaded(input_ids=ids).logits, model(input_ids=ids).logits)


@encoders
def test_encoders(name: str) -> None:
    model, ids = supported(name, masked=True), tokens(30)
    stock = logits(model, ids)
    patch_model(model, "host")
    assert_close(logits(model, ids), stock)
    unpatch_model(model)
    assert torch.equal(logits(model, ids), stock)
    patch_model(model, "alibi")
    whole = logits(model, ids)
    text, mask = padded(ids, left=False)
    assert_close(logits(model, text, attention_mask=mask)[:, :30], whole)
    assert logits(model, tokens(LENGTH + 40)).isfinite().all()  # past the end of any table


@pytest.mark.parametrize(
    ("name", "half"),
    [
        ("ctrl", "depends on the order"),  # adds sines to its embeddings in the forward itself
        ("hunyuan_v1_dense", "not in pairs"),  # norms with weights stand behind its rotation
        ("deepseek_v32", "reads only some keys"),  # chosen by a second query, which is rotated
        ("deepseek_v4", "keys where"),  # keys of several tokens
        ("inkling_text", "position_bias"),  # profiles of the distance, mixed by content
        ("diffllama", "once a call"),
        ("mamba", "goes through the AttentionInterface"),
        ("doge", "numbers of its own to its scores"),
        ("whisper", "audio encoder"),
        ("gemma3n_text", "num_kv_shared_layers=2"),
        ("gemma4_text", "num_kv_shared_layers=2"),  # without them it can be patched
    ],
)
def test_what_cannot_be_patched_is_refused(name: str, half: str) -> None:
    sharing = {
        "num_kv_shared_layers": 2,
        "num_hidden_layers": 4,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
    }
    if name not in CONFIG_MAPPING:
        pytest.skip(f"no {name} in this transformers")
    model, ids = tiny(name, **(sharing if name.startswith("gemma") else {})), tokens(20)
    stock = logits(model, ids)
    with pytest.raises(UnsupportedModel, match=half):
        patch_model(model, "yarn", factor=2)
    assert torch.equal(logits(model, ids), stock)


def test_layers_that_need_no_extension_keep_their_own_positions() -> None:
    """Gemma 3 rotates layers with a window by another base; SmolLM3 does not rotate every fourth."""
    model = tiny("smollm3")
    patch_model(model, "yarn", factor=2)
    assert describe(model).layers == {"3": "host"}
    unpatch_model(model)
    patch_model(model, "yarn", factor=2, layers="all")
    assert describe(model).layers == {}
    unpatch_model(model)
    patch_model(model, "alibi")
    assert describe(model).layers == {}


@pytest.mark.parametrize("scheme", ["none", "alibi", "host", "yarn"])
@pytest.mark.parametrize("layers", [2, 3])
def test_a_narrow_window_in_the_last_layer_is_no_decoder(layers: int, scheme: str) -> None:
    """It hides the last token from the first one, as a decoder does."""
    own = {"num_hidden_layers": layers, "global_attn_every_n_layers": layers, "local_attention": 8}
    model, ids = tiny("modernbert", masked=True, **own), torch.randint(5, 97, (1, 30))
    other = ids.clone()
    other[0, -1] = 98
    padded, real = torch.cat((ids, torch.zeros(1, 10).long()), dim=1), (torch.arange(40) < 30).long()[None]
    patch_model(model, scheme, factor=2)
    with torch.no_grad():
        first = [model.model(x, output_hidden_states=True).hidden_states[1][0, 0] for x in (ids, other)]
        alone, beside = model(ids).logits, model(padded, attention_mask=real).logits[:, :30]
    assert not torch.equal(*first), "the first layer has no window"
    torch.testing.assert_close(beside, alone, atol=1e-5, rtol=0)


@pytest.mark.parametrize("use_cache", [False, True])
def test_prompts_are_refused(use_cache: bool) -> None:
    """They are keys of no token; without them the model is read."""

    def read(prompts: bool) -> torch.Tensor:
        model = tiny_encoder_decoder("mvp", use_prompt=prompts, prompt_length=5, prompt_mid_dim=16)
        ids = torch.randint(5, 98, (1, 20))
        patch_model(model, "alibi", factor=2)
        return model(input_ids=ids, decoder_input_ids=ids, use_cache=use_cache).logits

    assert read(prompts=False).isfinite().all()
    with pytest.raises(UnsupportedModel, match="attends to 25 keys"):
        read(prompts=True)

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

from .tiny import LENGTH, tiny, tiny_encoder_decoder, tokens

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
FIRST_SCHEMES = ["yarn", *(pytest.param(name, marks=pytest.mark.slow) for name in SCHEMES if name != "yarn")]


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


def logits(model: PreTrainedModel, ids: Tensor, **call: Any) -> Tensor:
    with torch.no_grad():
        return model(input_ids=ids, **call).logits


def cached(model: PreTrainedModel, ids: Tensor, first: int, chunk: int = 1, mask: Tensor | None = None) -> Tensor:
    """Logits of a text that is read in parts, the keys of which are cached."""
    past, found = None, []
    for start, end in [(0, first), *((at, at + chunk) for at in range(first, ids.shape[1], chunk))]:
        call = {} if mask is None else {"attention_mask": mask[:, :end]}
        with torch.no_grad():
            out = model(input_ids=ids[:, start:end], past_key_values=past, use_cache=True, **call)
        past = out.past_key_values
        found.append(out.logits)
    return torch.cat(found, dim=1)


def continues(model: PreTrainedModel, ids: Tensor, stock: Tensor, chunk: int = 1) -> bool:
    """Whether an unpatched model continues a text from its cache, with room for our rounding beside its own.

    Some begin anew with every chunk, or have no cache.
    """
    if getattr(model(input_ids=ids[:, :2]), "past_key_values", None) is None:
        return False
    return float((cached(model, ids, 12, chunk) - stock).abs().max() / stock.std()) < CLOSE / 2


def mixes_by_attention(model: PreTrainedModel) -> bool:
    """Whether attention alone mixes tokens: no state-space, linear or convolution layers."""
    return not any(hasattr(module, "conv1d") or isinstance(module, torch.nn.Conv1d) for module in model.modules())


def assert_close(found: Tensor, wanted: Tensor) -> None:
    gap = float((found - wanted).abs().max() / wanted.std())
    assert gap < CLOSE, f"{gap:.1e} of the spread"


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


@decoders
@pytest.mark.parametrize("scheme", FIRST_SCHEMES)
def test_every_way_to_read_a_text(name: str, scheme: str) -> None:
    """At once, token by token, in chunks, and with padding before it."""
    model, ids = supported(name), tokens(40)
    padding = torch.zeros(2, 5, dtype=torch.long)
    padded, mask = torch.cat((padding, ids), 1), torch.cat((padding, torch.ones_like(ids)), 1)
    stock = logits(model, ids, use_cache=False)
    by_steps, in_chunks = continues(model, ids, stock), continues(model, ids, stock, chunk=4)
    shifted = logits(model, padded, attention_mask=mask, use_cache=False)[:, 5:]
    numbers_padding = name in NUMBERS_PADDING or float((shifted - stock).abs().max() / stock.std()) > CLOSE  # as BART
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
        assert_close(logits(model, padded, attention_mask=mask, use_cache=False)[:, 5:], whole)
        assert_close(cached(model, padded, 17, mask=mask)[:, 5:], whole)


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
    padding = torch.zeros(2, 5, dtype=torch.long)
    mask = torch.cat((torch.ones_like(ids), padding), 1)
    assert_close(logits(model, torch.cat((ids, padding), 1), attention_mask=mask)[:, :30], whole)
    assert logits(model, tokens(LENGTH + 40)).isfinite().all()  # past the end of any table


@pytest.mark.parametrize(
    ("name", "half"),
    [
        ("ctrl", "still knows the order"),  # adds sines to its embeddings in the forward itself
        ("hunyuan_v1_dense", "not in pairs"),  # norms with weights stand behind its rotation
        ("deepseek_v32", "looks at some keys only"),  # chosen by a second query, which is rotated
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

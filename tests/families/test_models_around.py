"""Models whose configuration is not that of the base model inside them: checkpoints of the whole carry the scheme."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from transformers import Gemma3Config, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
from transformers.models.t5 import modeling_t5

from hf_posenc import describe, from_pretrained, load_starter, patch_model, unpatch_model
from hf_posenc.checks import Case, applicable_checks
from hf_posenc.insight.families import one
from hf_posenc.patches.general.stand_in import without_weights
from hf_posenc.patching.preconditions import check_single_model
from hf_posenc.patching.state import base_model_of

from .test_families import assert_close
from .tiny import cached, random_model, tiny, tiny_config, tokens


def gemma3(**options: Any) -> PreTrainedModel:
    """A tiny model of text and images."""
    images = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28, "patch_size": 14}
    special = {"image_token_index": 98, "boi_token_index": 97, "eoi_token_index": 96}
    text = tiny_config("gemma3_text", **options).to_dict()
    config = Gemma3Config(text_config=text, vision_config=images, mm_tokens_per_image=4, **special)
    return random_model("Gemma3ForConditionalGeneration", config)


def umt5_encoder() -> PreTrainedModel:
    if not hasattr(modeling_t5, "eager_attention_forward"):
        pytest.skip("this version of transformers computes T5's attention in the module itself")
    return random_model("UMT5EncoderModel", tiny_config("umt5", d_kv=16))


def output(model: PreTrainedModel) -> Tensor:
    with torch.no_grad():
        return model(tokens(20) % 90)[0]


@pytest.mark.parametrize("build", [gemma3, umt5_encoder])
def test_saved_and_loaded(build: Any, tmp_path: Path) -> None:
    model = build()
    stock, config = output(model), model.config
    patch_model(model, "t5", factor=2)
    patched = output(model)
    assert not torch.equal(patched, stock)
    model.save_pretrained(tmp_path)
    loaded = from_pretrained(tmp_path).eval()
    assert type(loaded) is type(model)
    assert describe(loaded) == describe(model)
    assert torch.equal(output(loaded), patched)
    assert torch.equal(output(unpatch_model(loaded)), stock)
    assert torch.equal(output(unpatch_model(model)), stock)
    assert model.config is config
    assert not [name for module in model.modules() for name in vars(module) if name.startswith("posenc")]


@pytest.mark.parametrize("scheme", ["host", "yarn", "alibi"])
def test_a_text_is_continued_past_the_window(scheme: str) -> None:
    """The model around the decoder makes the masks, and layers with a window hold fewer keys than there are tokens."""
    model, ids = gemma3(sliding_window=8), tokens(24) % 90
    patch_model(model, scheme, factor=2)
    with torch.no_grad():
        assert_close(cached(model, ids, 12), model(ids, use_cache=False).logits)


@pytest.mark.parametrize("model_type", ["smolvlm", "idefics3", "janus"])
def test_a_table_of_places_in_an_image_reads_no_tokens(model_type: str) -> None:
    """Their vision towers have an embedding, too, and are no second model of text."""
    cls = getattr(transformers, MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES[model_type])
    with without_weights():
        model = cls(transformers.CONFIG_MAPPING[model_type]())
    base = base_model_of(model)[0]
    check_single_model(model, base)
    assert base.config.model_type == "llama"


@pytest.mark.parametrize(("model", "kind"), [("bert", "masked"), ("llama", "causal")])
def test_the_kind_of_a_model_without_a_head_is_observed(model: str, kind: str, tmp_path: Path) -> None:
    load_starter(model)[0].base_model.save_pretrained(tmp_path)
    assert [family.kind for family in one(str(tmp_path))] == [kind]


def test_checks_of_what_a_model_cannot_do_do_not_apply() -> None:
    """XLM has no gradient checkpointing, and `torch.compile` cannot follow its intercepted attention."""
    needed = {"gradient_checkpointing", "torch_compile", "recompilation"}
    for model, expected in (("xlm", set()), ("llama", needed)):
        names = {check.name for check in applicable_checks(Case(tiny(model), "alibi"))}
        assert names & needed == expected

"""A stranger's decoder, by the page on adding a model: it takes schemes, and every step that is left out is named."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModel, DynamicCache, GPT2Config, GPT2Model
from transformers.models.gpt2.modeling_gpt2 import GPT2Attention

from hf_posenc import check_scheme, from_pretrained, patch_model
from hf_posenc.errors import PosEncError
from hf_posenc.extend import Adapter, PatchedAttention, register_adapter
from hf_posenc.patches import registry
from hf_posenc.patches.gpt2 import GPT2Adapter, PatchedGPT2Attention

from . import stranger


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    yield
    registry._ADAPTERS.pop("tiny_stranger", None)


def adapter(**members: Any) -> type[Adapter]:
    return type("Own", (stranger.TinyAdapter,), members)


def attention(*bases: type, **members: Any) -> type[Adapter]:
    patched = type("Patched", bases or (stranger.PatchedTinyAttention,), members)
    return adapter(attention={stranger.TinyAttention: patched})


def patched(cls: type[Adapter], model: type[stranger.TinyModel] = stranger.TinyModel, scheme: str = "yarn") -> Any:
    torch.manual_seed(0)
    register_adapter("tiny_stranger")(cls)
    return patch_model(model(stranger.TinyConfig()).eval(), scheme, factor=4)


@pytest.mark.parametrize("scheme", ["rope", "yarn", "alibi"])
def test_the_right_adapter_computes(scheme: str) -> None:
    """Negative control of the rest: cached as uncached, a relative scheme, and rope as the model itself."""
    model, ids = patched(stranger.TinyAdapter, scheme=scheme), torch.arange(6)[None]
    torch.manual_seed(0)
    plain = stranger.TinyModel(stranger.TinyConfig()).eval()
    with torch.no_grad():
        full, shifted = model(ids).last_hidden_state, model(ids, position_ids=ids + 3).last_hidden_state
        cache = DynamicCache()
        model(ids[:, :4], past_key_values=cache, use_cache=True)
        rest = model(ids[:, 4:], past_key_values=cache, use_cache=True).last_hidden_state
        own = plain(ids).last_hidden_state
    torch.testing.assert_close(rest, full[:, 4:])
    torch.testing.assert_close(shifted, full)
    assert torch.allclose(own, full, atol=1e-6) == (scheme == "rope")


def test_a_class_registered_with_an_auto_class_is_loaded(tmp_path: Path) -> None:
    AutoConfig.register("tiny_stranger", stranger.TinyConfig, exist_ok=True)
    AutoModel.register(stranger.TinyConfig, stranger.TinyModel, exist_ok=True)
    model, ids = patched(stranger.TinyAdapter), torch.arange(6)[None]
    model.save_pretrained(tmp_path)
    assert torch.equal(from_pretrained(tmp_path)(ids).last_hidden_state, model(ids).last_hidden_state)


def test_a_check_of_what_the_model_lacks_does_not_fail() -> None:
    """Its configuration has no RoPE parameters and no vocabulary size, and its attention returns no weights."""
    torch.manual_seed(0)
    register_adapter("tiny_stranger")(stranger.TinyAdapter)
    model = stranger.TinyModel(stranger.TinyConfig())
    exported, distance = check_scheme(model, "yarn", factor=4, checks=["native_export", "distance"])
    assert not exported.failed, exported
    assert "reads no RoPE type" in exported.where
    assert not distance.failed, distance
    assert "returns no weights" in distance.where


class NoKeywords(stranger.TinyModel):
    def forward(self, input_ids=None, attention_mask=None, position_ids=None, past_key_values=None):
        return super().forward(input_ids, attention_mask, position_ids, past_key_values)


class NoPositions(stranger.TinyModel):
    def forward(self, input_ids=None, attention_mask=None, past_key_values=None, **call):
        return super().forward(input_ids, attention_mask, None, past_key_values, **call)


class NoCache(stranger.TinyModel):
    def forward(self, input_ids=None, attention_mask=None, position_ids=None, **call):
        return super().forward(input_ids, attention_mask, position_ids, **call)


class NoEmbeddings(stranger.TinyModel):
    def get_input_embeddings(self):
        raise NotImplementedError


class OneNumber(stranger.TinyModel):
    def __init__(self, config: stranger.TinyConfig) -> None:
        super().__init__(config)
        for block in self.blocks:
            block.attention.layer_idx = 0


def wrong_rotation(self: Any, config: Any, **lengths: int) -> Any:
    return replace(stranger.TinyAdapter.geometry(self, config, **lengths), rotary=None)


def without(name: str) -> Any:
    """An attention class that drops an argument of its call."""

    def forward(self: Any, x: Any, mask: Any, cos_sin: Any, past_key_values: Any = None, **call: Any) -> Any:
        given = {"mask": mask, "past_key_values": past_key_values, name: None}
        return stranger.PatchedTinyAttention.forward(self, x, cos_sin=cos_sin, **given, **call)

    return attention(forward=forward)


def without_hidden(self: Any, x: Any, mask: Any, cos_sin: Any, past_key_values: Any = None, **call: Any) -> Any:
    q, k, v = (self.split(project(x)) for project in (self.query, self.key, self.value))
    return self.out(self.attend(q, k, v, hidden=None, cache=past_key_values, mask=mask, host=call)[0].flatten(2))


MISTAKES: dict[str, Any] = {
    "reads max_position_embeddings of TinyConfig": lambda: [adapter(trained_length=Adapter.trained_length)],
    "reads n_head of TinyConfig": lambda: [adapter(geometry=lambda self, config, **lengths: config.n_head)],
    "PatchedAttention, and then from it": lambda: [
        attention(stranger.TinyAttention, PatchedAttention, project_query=abs, project_key=abs)
    ],
    "whose project_query": lambda: [attention(project_query=PatchedAttention.project_query)],
    "posenc_forward": lambda: [stranger.TinyAdapter, NoKeywords],
    "get_input_embeddings": lambda: [stranger.TinyAdapter, NoEmbeddings],
    "no mask of a padded text": lambda: [without("mask")],
    "no hidden states": lambda: [attention(forward=without_hidden)],
    "no KV cache in a call": lambda: [without("past_key_values")],
    "whose dropped is missing": lambda: [attention(dropout_name="dropped")],
    "is_causal of Patched": lambda: [attention(is_causal=False)],
    "have the same layer_idx": lambda: [stranger.TinyAdapter, OneNumber],
    r"blocks.1.attention\) have": lambda: [attention(layer_idx=property(lambda self: 0))],
    "is_causal is missing": lambda: [attention(is_causal=property(lambda self: self.nothing))],
    "dropped is missing and whose is_causal is missing": lambda: [
        attention(dropout_name="dropped", is_causal=property(lambda self: self.nothing))
    ],
    "config is missing": lambda: [attention(config=property(lambda self: self.nothing))],
    "host_eager is <bound method": lambda: [attention(host_eager=lambda *_: None)],
    "own positions than before": lambda: [adapter(geometry=wrong_rotation)],
    "fails in swaps": lambda: [adapter(swaps=lambda self, base, scheme: None)],
    "names no position_ids": lambda: [stranger.TinyAdapter, NoPositions],
    "names no past_key_values": lambda: [stranger.TinyAdapter, NoCache],
}


@pytest.mark.parametrize("named", MISTAKES)
def test_what_is_left_out_is_named(named: str) -> None:
    with pytest.raises(PosEncError, match=named):
        patched(*MISTAKES[named]())


class TableConfig(GPT2Config):
    model_type = "tiny_stranger"


def with_table(**members: Any) -> Any:
    torch.manual_seed(0)
    register_adapter("tiny_stranger")(type("Own", (GPT2Adapter,), members))
    model = GPT2Model(TableConfig(n_embd=32, n_head=4, n_layer=2, n_positions=32, vocab_size=50))
    return patch_model(model.eval(), "alibi", layers={"1": "none"})


def test_an_adapter_for_a_position_table_is_checked_too() -> None:
    unscaled = property(lambda self: 1.0, lambda self, value: None)
    attention = type("Unscaled", (PatchedGPT2Attention,), {"scaling": unscaled})
    assert with_table(), "control: GPT-2's own adapter"
    with pytest.raises(PosEncError, match=r"correct geometry .* scaling, swaps"):
        with_table(attention={GPT2Attention: attention})
    with pytest.raises(PosEncError, match="table = None, and the position table has rows for 32"):
        with_table(geometry=lambda *given, **lengths: replace(GPT2Adapter.geometry(*given, **lengths), table=None))

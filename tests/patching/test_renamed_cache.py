"""A transformers that renames its KV cache once more is refused in words, before a patched model forgets its text."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM, LlamaModel

from hf_posenc import patch_model
from hf_posenc.errors import AdapterInvalid, HostChanged
from hf_posenc.forward import host_calls
from hf_posenc.forward.host_calls import cache_argument, cache_of

TINY = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 50}


class RenamedModel(LlamaModel):
    """Takes its KV cache under a name that no release has."""

    def forward(
        self, input_ids: Any = None, kv: Any = None, position_ids: Any = None, use_cache: bool = False, **call: Any
    ) -> Any:
        if use_cache and kv is None:
            kv = DynamicCache(config=self.config)
        given = {"use_cache": use_cache, "position_ids": position_ids, **cache_argument(LlamaModel, kv)}
        return super().forward(input_ids, **given, **call)


class StrictModel(LlamaModel):
    """Takes no keywords of callers."""

    def forward(self, input_ids: Any = None, position_ids: Any = None, use_cache: bool = False) -> Any:
        return super().forward(input_ids, position_ids=position_ids, use_cache=use_cache)


@pytest.mark.parametrize("cls", [RenamedModel, StrictModel])
def test_a_model_that_would_forget_is_refused(cls: type[LlamaModel]) -> None:
    model = cls(LlamaConfig(**TINY))
    with pytest.raises((HostChanged, AdapterInvalid), match=cls.__name__):
        patch_model(model, "yarn", factor=2)
    assert type(model.layers[0].self_attn).__name__ == "LlamaAttention"  # the model is as it was


def test_unknown_names_of_the_cache_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = patch_model(LlamaForCausalLM(LlamaConfig(**TINY)), "yarn", factor=2)
    monkeypatch.setattr(host_calls, "CACHE_NAMES", ("memory",))
    with pytest.raises(HostChanged, match="known name"):
        model(torch.arange(4)[None], use_cache=True)


@pytest.mark.parametrize("name", ["cache", "past_key_values"])
def test_callers_may_use_either_name(name: str) -> None:
    """Cached equals uncached, whatever a caller of the base model calls the cache."""
    model = patch_model(LlamaModel(LlamaConfig(**TINY)), "yarn", factor=2).eval()
    ids = torch.arange(3, 13)[None]
    with torch.no_grad():
        whole, cache = model(ids).last_hidden_state, DynamicCache()
        model(ids[:, :6], use_cache=True, **{name: cache})
        out = model(ids[:, 6:], use_cache=True, **{name: cache})
    assert cache_of(out) is cache
    torch.testing.assert_close(out.last_hidden_state, whole[:, 6:], atol=1e-5, rtol=0)

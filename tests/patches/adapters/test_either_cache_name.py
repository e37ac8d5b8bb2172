"""Adapters of third parties keep working, whether they call the KV cache ``past_key_values`` or ``cache``."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import DynamicCache, LlamaConfig, LlamaModel

from hf_posenc import patch_model
from hf_posenc.forward.host_calls import cache_argument
from hf_posenc.patches import registry
from hf_posenc.patches.llama import LlamaAdapter, PatchedLlamaAttention


class OfOld(PatchedLlamaAttention):
    """Names the cache as transformers did up to 5.23."""

    def forward(
        self, hidden_states: Any, position_embeddings: Any = None, attention_mask: Any = None,
        past_key_values: Any = None, **call: Any,
    ) -> Any:  # fmt: skip
        return attended(self, hidden_states, attention_mask, past_key_values, call)


class OfNow(PatchedLlamaAttention):
    """Names the cache as transformers does from 5.24 on."""

    def forward(
        self, hidden_states: Any, position_embeddings: Any = None, attention_mask: Any = None, cache: Any = None,
        **call: Any,
    ) -> Any:  # fmt: skip
        return attended(self, hidden_states, attention_mask, cache, call)


def attended(layer: Any, hidden: Any, mask: Any, cache: Any, call: dict[str, Any]) -> Any:
    """The output of a layer and its weights."""
    shape = (*hidden.shape[:-1], -1, layer.head_dim)
    q, k, v = (project(hidden).view(shape).transpose(1, 2) for project in (layer.q_proj, layer.k_proj, layer.v_proj))
    mixed, weights = layer.attend(q, k, v, hidden=hidden, cache=cache, mask=mask, host=call)
    return layer.o_proj(mixed.flatten(2)), weights


@pytest.mark.parametrize("attention", [OfOld, OfNow])
@pytest.mark.parametrize("scheme", ["yarn", "alibi"])
def test_cached_equals_uncached(attention: type, scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (own,) = LlamaAdapter.attention
    adapter = type("Third", (LlamaAdapter,), {"attention": {own: attention}})
    monkeypatch.setitem(registry._ADAPTERS, "llama", adapter)
    torch.manual_seed(0)
    model = LlamaModel(
        LlamaConfig(
            vocab_size=50, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
            max_position_embeddings=16,
        )
    ).eval()  # fmt: skip
    patch_model(model, scheme, **({"factor": 2} if scheme == "yarn" else {}))
    assert type(model.layers[0].self_attn) is attention
    ids, cache = torch.arange(3, 27)[None], DynamicCache()
    with torch.no_grad():
        whole = model(ids, use_cache=False).last_hidden_state
        parts = [
            model(part, use_cache=True, **cache_argument(LlamaModel, cache)).last_hidden_state
            for part in ids.split(9, 1)
        ]
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, atol=1e-5, rtol=0)  # float32 sums in another order
    assert cache.get_seq_length() == ids.shape[1]

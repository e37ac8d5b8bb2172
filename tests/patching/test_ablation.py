"""An adapter that leaves a term of its scheme out, or the model's own positions in, is refused whatever else moves.

Each broken adapter is the example for GPT-NeoX, which has the model's own rotation, with one thing left out. Under a
scheme that replaces the rotation, its absence alone moves outputs: a comparison with the unpatched model shows nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch
from transformers.models.gpt_neox.modeling_gpt_neox import GPTNeoXAttention, apply_rotary_pos_emb

from hf_posenc import describe, is_patched, patch_model
from hf_posenc.checks.tiny_models import TRAINED_LENGTH, tiny_model
from hf_posenc.core.regions import EVERYTHING, ONE_REGION
from hf_posenc.core.terms import Terms
from hf_posenc.errors import NoEffect
from hf_posenc.extend import PatchedAttention, register_adapter
from hf_posenc.forward.attention import RotatedCall
from hf_posenc.patches import registry
from hf_posenc.patches.gpt2 import GPT2Adapter

from ..patches.adapters.neox import tiny_neox

TEXT = torch.randint(3, 60, (1, TRAINED_LENGTH), generator=torch.Generator().manual_seed(0))


def register(example: ModuleType, **members: Any) -> None:
    """The example with other members, in place of the example, as one of this package: only the proof judges it."""
    registry._ADAPTERS.pop("gpt_neox")
    home = "hf_posenc.patches.gpt_neox"
    register_adapter("gpt_neox")(type("Broken", (example.GPTNeoXAdapter,), {"__module__": home, **members}))


def attention(example: ModuleType, **members: Any) -> dict[str, Any]:
    """The example's attention class with other members, as a member of an adapter."""
    cls = type("BrokenAttention", (example.PatchedGPTNeoXAttention,), {"__module__": __name__, **members})
    return {"attention": {GPTNeoXAttention: cls}}


def uncoded(self: Any, base: Any, scheme: Any) -> Any:
    """Swaps without the layer that adds codes."""
    yield base.rotary_emb, type(self).disabled


def with_terms(change: Callable[[Terms], Terms]) -> dict[str, Any]:
    """Attention that hands on other terms than its scheme's."""

    def changed(call: RotatedCall) -> RotatedCall:
        return call._replace(split=replace(call.split, terms=change(call.split.terms)))

    def by_engine(self: Any, call: RotatedCall, *rest: Any) -> Any:
        return PatchedAttention._attend_by_engine(self, changed(call), *rest)

    def by_host(self: Any, call: RotatedCall, *rest: Any) -> Any:
        return PatchedAttention._attend_by_host(self, changed(call), *rest)

    return {"_attend_by_engine": by_engine, "_attend_by_host": by_host}


def leaving_out(**neutral: Any) -> dict[str, Any]:
    return with_terms(lambda terms: replace(terms, **neutral))


def unscaled(self: Any, call: Any, host: Any, cache: Any) -> Any:
    """Queries without the factor that they were multiplied by."""
    factor = call.split.query_factor
    queries = call.queries if factor is None else tuple(q / factor for q in call.queries)
    return PatchedAttention.mix(self, call._replace(queries=queries), host, cache)


def unprepared(self: Any, plan: Any, ctx: Any, q: Any, k: Any, v: Any) -> Any:
    return PatchedAttention._rotate(self, replace(plan, traits=replace(plan.traits, prepares=False)), ctx, q, k, v)


def unrotated(self: Any, plan: Any, ctx: Any, q: Any, k: Any, v: Any) -> Any:
    return (q,), (k,), v


def one_copy(self: Any, plan: Any, ctx: Any, q: Any, k: Any, v: Any) -> Any:
    """Queries and keys of the first region, for all of them."""
    queries, keys, v = PatchedAttention._rotate(self, plan, ctx, q, k, v)
    return (queries[0],) * len(queries), keys[:1], v


DROPPED: dict[str, tuple[str, dict[str, Any], str, dict[str, Any]]] = {
    "rotation": ("has a rotation", {"_rotate": unrotated}, "yarn", {"factor": 4}),
    "rotation under a bias": ("has a rotation", {"_rotate": unrotated}, "rope+alibi", {}),
    "rotation that is kept": ("moved tokens below", {"_rotate": unrotated}, "host+logn", {"factor": 4}),
    "rotation by length": ("moved tokens below", leaving_out(row_rotation=None), "dynamic_ntk", {"factor": 4}),
    "bias of keys": ("has a bias", leaving_out(bias=()), "alibi", {}),
    "bias of the distance": ("has a bias", leaving_out(bias=()), "t5", {}),
    "bias of content": ("has a bias", leaving_out(bias=()), "transformer_xl", {}),
    "bias on the own rotation": ("nothing moved", leaving_out(bias=()), "host+alibi", {}),
    "one of two": ("has a bias", leaving_out(bias=()), "yarn+fox", {"factor": 4}),
    "values": ("has a term of the values", leaving_out(values=()), "shaw", {"values": True}),
    "query scale": ("has a factor of the queries", {"mix": unscaled}, "alibi+logn", {"factor": 4}),
    "query scale on a rotation": ("nothing moved", {"mix": unscaled}, "rope+logn", {"factor": 4}),
    "row scale": ("has a factor of each query", leaving_out(row_scale=None), "alibi+ssmax", {}),
    "logit scale": ("has a factor of the logits", leaving_out(logit_scale=1.0), "yarn", {"factor": 8}),
    "remap": ("nothing moved|has a remapped", {"_rotate": one_copy}, "self_extend", {"factor": 4}),
    "remap under a scale": ("has remapped", leaving_out(regions=ONE_REGION), "rerope+logn", {"factor": 4}),
    "mask": ("has a mask", leaving_out(visible=EVERYTHING), "alibi+window", {"size": 8, "factor": 4}),
    "sink": ("has an attention sink", leaving_out(sink=None), "sinks", {"learned_logit": True, "factor": 4}),
    "change of queries": ("has a change of queries", {"_rotate": unprepared}, "drope", {"qk_norm": "qk"}),
}


@pytest.mark.parametrize("kind", DROPPED)
def test_a_term_that_the_adapter_drops(example: ModuleType, kind: str) -> None:
    words, members, scheme, options = DROPPED[kind]
    register(example, **attention(example, **members))
    model = tiny_neox(partial=1.0)  # where YaRN's factor is one of the logits
    with pytest.raises(NoEffect, match=words):
        patch_model(model, scheme, **options)
    assert not is_patched(model)


@pytest.mark.parametrize("scheme", ["sinusoidal", "binary", "integer", "learned", "norm01", "sinusoidal+logn"])
def test_codes_that_the_adapter_forgets(example: ModuleType, scheme: str) -> None:
    register(example, swaps=uncoded, disabled=example.DisabledGPTNeoXRotaryEmbedding)
    model = tiny_neox()
    with pytest.raises(NoEffect, match="adds codes to the embeddings, and none reaches"):
        patch_model(model, scheme, factor=4)
    assert not is_patched(model)


def rotates_first(example: ModuleType) -> Any:
    """A forward that rotates as the model does, and hands that to `attend`."""

    def forward(self, hidden_states, attention_mask=None, layer_past=None, position_embeddings=None, **call):
        q, k, v = (x.transpose(1, 2) for x in self.project(hidden_states))
        q, k = apply_rotary_pos_emb(q, k, *position_embeddings)
        mixed, weights = self.attend(q, k, v, hidden=hidden_states, cache=layer_past, mask=attention_mask, host=call)
        return self.dense(mixed.flatten(2)), weights

    return forward


@pytest.mark.parametrize(("scheme", "options"), [("alibi", {}), ("yarn", {"factor": 4}), ("none", {})])
def test_a_rotation_that_the_adapter_leaves_in(example: ModuleType, scheme: str, options: dict[str, Any]) -> None:
    register(example, **attention(example, forward=rotates_first(example)), swaps=lambda self, base, scheme: iter(()))
    with pytest.raises(NoEffect, match=r"still uses them|nothing moved"):
        patch_model(tiny_neox(), scheme, **options)


class KeepsTable(GPT2Adapter):
    """GPT-2 whose table stays what it is."""

    def swaps(self, base: Any, scheme: Any) -> Any:
        return iter(())


@pytest.mark.parametrize(("scheme", "words"), [("alibi", "still uses them"), ("sinusoidal", "none reaches|nothing")])
def test_a_table_that_the_adapter_leaves_in(scheme: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry._ADAPTERS, "gpt2", KeepsTable)
    with pytest.raises(NoEffect, match=words):
        patch_model(tiny_model("gpt2"), scheme)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("scheme", ["sinusoidal", "integer", "alibi+logn", "yarn", "shaw", "self_extend", "drope"])
def test_the_example_itself_is_not_refused(example: ModuleType, scheme: str, dtype: torch.dtype) -> None:
    model = patch_model(tiny_neox().to(dtype), scheme, factor=4)
    assert describe(model).proof.verdict == "moved"


def test_hooks_are_put_back() -> None:
    """Logits of a patched model do not depend on what the proof tried; bit for bit those of a model loaded alike."""
    model = patch_model(tiny_model("llama"), "yarn+logn+alibi", factor=4)
    names = {name for part in model.model.posenc.schemes for name in vars(part)}
    assert not names & {"rotation", "query_scale", "bias", "logit_scale"}
    assert torch.equal(deepcopy(model)(TEXT).logits, model(TEXT).logits)

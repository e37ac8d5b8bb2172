"""Errors of an adapter are refused: its class at registration, its answers at the first patch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn
from transformers.models.gpt_neox.modeling_gpt_neox import GPTNeoXAttention, GPTNeoXModel

from hf_posenc import is_patched, patch_model
from hf_posenc.errors import AdapterInvalid, PosEncError
from hf_posenc.extend import Adapter, register_adapter
from hf_posenc.patches import registry

from ...example_modules import example_module
from .neox import tiny_neox


@pytest.fixture
def example() -> Iterator[ModuleType]:
    with example_module("third_party_adapter") as module:
        yield module


class Nothing(Adapter):
    """Defines none of what it must."""


def variant(example: ModuleType, **members: Any) -> type[Adapter]:
    return type("Variant", (example.GPTNeoXAdapter,), {"__module__": __name__, **members})


CLASSES: dict[str, Callable[[ModuleType], type]] = {
    "geometry": lambda example: Nothing,
    "attention = {}": lambda example: variant(example, attention={}),
    "does not derive": lambda example: variant(example, attention={GPTNeoXAttention: nn.Linear}),
    "no PreTrainedModel": lambda example: variant(example, base_class=nn.Linear),
}


@pytest.mark.parametrize("message", CLASSES)
def test_a_class_is_refused_when_it_is_registered(example: ModuleType, message: str) -> None:
    with pytest.raises(AdapterInvalid, match=message):
        register_adapter("something")(CLASSES[message](example))
    assert "something" not in registry.adapter_names()


def changed(**numbers: Any) -> Callable[..., Any]:
    """A geometry with other numbers than the model's."""

    def geometry(self: Any, config: Any, **lengths: int) -> Any:
        return replace(super(type(self), self).geometry(config, **lengths), **numbers)

    return geometry


ANSWERS: dict[str, dict[str, Any]] = {
    "trained_length is 0": {"trained_length": lambda self, config: 0},
    "returns None as geometry": {"geometry": lambda self, config, **lengths: None},
    "heads = 0": {"geometry": changed(heads=0)},
    "4 heads and 3 kv_heads": {"geometry": changed(kv_heads=3)},
    "other lengths": {"geometry": changed(trained_length=7)},
    "2 heads .* 4 heads": {"geometry": changed(heads=2, kv_heads=2)},
    "16 channels": {"geometry": changed(head_dim=16)},
    "says 3": {"geometry": changed(layers=3)},
    "has 0 attention layers": {"attentions": lambda self, base: iter(())},
    "returns a tensor of shape": {"probe": lambda self, base, hidden, positions, layer: hidden[0]},
}


@pytest.mark.parametrize("message", ANSWERS)
def test_an_answer_is_refused_at_the_first_patch(example: ModuleType, message: str) -> None:
    registry._ADAPTERS.pop("gpt_neox")
    register_adapter("gpt_neox")(variant(example, **ANSWERS[message]))
    model = tiny_neox()
    with pytest.raises(PosEncError, match=message):
        patch_model(model, "yarn", factor=4)
    assert not is_patched(model)


def broken_projection(example: ModuleType) -> type:
    def project_query(self: Any, x: torch.Tensor) -> torch.Tensor:
        return self.query_key_value(x)

    return type("Broken", (example.PatchedGPTNeoXAttention,), {"project_query": project_query})


def broken_forward(example: ModuleType) -> type:
    def forward(self: Any, hidden_states: torch.Tensor, *_: Any, **__: Any) -> Any:
        return self.dense(self.query_key_value(hidden_states)), None

    return type("Broken", (example.PatchedGPTNeoXAttention,), {"forward": forward})


BROKEN = [
    (broken_projection, "project_query"),
    (broken_forward, "cannot be run"),
]


@pytest.mark.parametrize(("make", "message"), BROKEN)
def test_an_attention_class_is_refused_at_the_first_patch(example: ModuleType, make: Callable, message: str) -> None:
    registry._ADAPTERS.pop("gpt_neox")
    register_adapter("gpt_neox")(variant(example, attention={GPTNeoXAttention: make(example)}))
    model = tiny_neox()
    with pytest.raises(AdapterInvalid, match=message):
        patch_model(model, "yarn", factor=4)
    assert not is_patched(model)


class DropsKeywords(GPTNeoXModel):
    """A base model that takes any keyword, and passes on those it knows."""

    def forward(self, input_ids=None, attention_mask=None, position_ids=None, **_: Any):
        return super().forward(input_ids, attention_mask, position_ids)


def test_a_forward_that_hands_nothing_on_is_refused_at_the_first_patch(example: ModuleType) -> None:
    """It used to fail at the next call, or to compute without padding."""
    model = tiny_neox()
    model.gpt_neox.__class__ = DropsKeywords
    before = {name for module in model.modules() for name in vars(module)}
    with pytest.raises(AdapterInvalid, match="posenc_forward"):
        patch_model(model, "yarn", factor=4)
    assert not is_patched(model)
    assert {name for module in model.modules() for name in vars(module)} <= before


def test_a_derived_configuration_has_the_adapter_of_its_parent(example: ModuleType) -> None:
    model = tiny_neox()
    model.gpt_neox.config.__class__ = type("Mine", (type(model.config),), {"model_type": "mine"})
    assert is_patched(patch_model(model, "yarn", factor=4))

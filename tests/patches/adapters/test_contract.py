"""Errors of an adapter are refused, by class and by answer; one that is right rotates as transformers does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers.models.gpt_neox.modeling_gpt_neox import GPTNeoXAttention, GPTNeoXModel

from hf_posenc import is_patched, patch_model
from hf_posenc.checks.tiny_models import TRAINED_LENGTH
from hf_posenc.errors import AdapterInvalid, PosEncError
from hf_posenc.extend import Adapter, register_adapter
from hf_posenc.patches import registry

from .neox import tiny_neox


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


FACTOR = 4
NATIVE: dict[str, dict[str, Any]] = {
    "rope": {"rope_type": "default"},
    "pi": {"rope_type": "linear", "factor": FACTOR},
    "yarn": {"rope_type": "yarn", "factor": FACTOR, "original_max_position_embeddings": TRAINED_LENGTH},
    "llama3": {
        "rope_type": "llama3", "factor": FACTOR, "original_max_position_embeddings": TRAINED_LENGTH,
        "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    },
}  # fmt: skip


def logits(model: nn.Module, length: int = 2 * TRAINED_LENGTH) -> Tensor:
    tokens = torch.randint(0, 96, (2, length), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        return model(tokens).logits


def native(scheme: str, partial: float) -> nn.Module:
    rope = {"rope_theta": 10_000.0, "partial_rotary_factor": partial, **NATIVE[scheme]}
    return tiny_neox(rope_parameters=rope, max_position_embeddings=FACTOR * TRAINED_LENGTH)


@pytest.mark.usefixtures("example")
@pytest.mark.parametrize("partial", [0.25, 0.5, 1.0])
@pytest.mark.parametrize("scheme", NATIVE)
def test_rotations_are_transformers_own(scheme: str, partial: float) -> None:
    theirs = logits(native(scheme, partial))
    ours = logits(patch_model(tiny_neox(partial), scheme, factor=FACTOR))
    assert (ours - theirs).abs().max() <= 1e-5 * theirs.abs().max()
    if scheme != "rope":  # control
        assert (logits(tiny_neox(partial)) - theirs).abs().max() > 1e-2

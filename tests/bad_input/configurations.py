"""Rows 60 and 61: live models whose configuration differs from what they were built with, and contradictory options."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import hf_posenc
from hf_posenc import errors

from .row import Errors, Row, Scene, patching

HOST: Errors = errors.HostConfigInvalid
LYING: list[tuple[str, str, Any, Errors, str]] = [
    ("llama", "num_attention_heads", 8, HOST, r"8 heads .+ weights have 4 heads"),
    ("llama", "num_key_value_heads", 1, HOST, r"\(1 of keys\).+\(2 of keys\)"),
    ("llama", "num_key_value_heads", None, errors.AdapterInvalid, "kv_heads = None.+put back"),
    ("llama", "head_dim", 8, HOST, "of 8 channels.+of 16 channels"),
    ("llama", "head_dim", 15, HOST, "widths of this LlamaModel.+configuration was changed"),
    ("llama", "max_position_embeddings", None, HOST, "max_position_embeddings.+None"),
    ("llama", "rope_parameters", None, HOST, "rope_parameters .+no rope_type, they are None"),
    ("llama", "rope_parameters", {"rope_type": "default", "rope_theta": None}, HOST, "no rope_theta"),
    ("llama", "rope_parameters", {"rope_type": "default"}, HOST, "no rope_theta"),
    ("gpt2", "n_head", 2, HOST, "2 heads .+ weights have 4 heads"),
    ("gpt2", "n_positions", None, HOST, "n_positions.+None"),
    ("bert", "num_attention_heads", 2, HOST, "2 heads .+ weights have 4 heads"),
]
SAVED: list[tuple[str, str, Any, str]] = [
    ("llama", "num_attention_heads", 2, "heads was 4 and is 2"),
    ("llama", "num_key_value_heads", 4, "kv_heads was 2 and is 4"),
    ("llama", "rope_parameters", {"rope_type": "default", "rope_theta": 17.0}, r"rope_parameters was .+17\.0"),
    ("llama", "rope_parameters", None, "rope_parameters was .+is None"),
    ("llama", "num_hidden_layers", 1, "layers was 2 and is 1"),
    ("llama", "num_attention_heads", None, "heads was 4 and is None"),
    ("gpt2", "n_head", None, "cannot be read any more"),
    ("llama", "position_scheme", None, "position_scheme was .+is None"),
    ("llama", "position_scheme", {"a": 1}, "position_scheme was .+'a'"),
    ("gpt2", "n_head", 2, "heads was 4 and is 2"),
    ("bert", "is_decoder", True, "causal was False and is True"),
]


def lying(name: str, value: Any) -> Callable[[Scene], object]:
    """Patch a model whose live configuration says something else; then put it right, so that the rest compares."""

    def act(scene: Scene) -> object:
        return within(scene.model.config, name, value, lambda: hf_posenc.patch_model(scene.model, "alibi"))

    return act


def saving(name: str, value: Any) -> Callable[[Scene], object]:
    """Save a patched model whose configuration was changed since."""

    def act(scene: Scene) -> object:
        return within(scene.model.config, name, value, lambda: scene.model.save_pretrained(scene.folder))

    return act


def within(config: Any, name: str, value: Any, act: Callable[[], object]) -> object:
    """``act`` while an entry of a configuration is another."""
    entries = vars(config)
    before, entries[name] = entries[name], copy.deepcopy(value)
    try:
        return act()
    finally:
        entries[name] = before


def whole_numbers(scene: Scene) -> object:
    """Weights cast to int8 by hand."""
    model = copy.deepcopy(scene.model)
    layer = model.model.layers[1].mlp.up_proj
    layer.weight = nn.Parameter(layer.weight.to(torch.int8), requires_grad=False)
    return hf_posenc.patch_model(model, "yarn", factor=2)


def rows() -> list[Row]:
    """All of them."""
    found = [
        Row(60, f"{model_type} {name} {value}", error, message, lying(name, value), model_type=model_type)
        for model_type, name, value, error, message in LYING
    ]
    found += [
        Row(
            61,
            f"saving {model_type} {name} {value}",
            HOST,
            message,
            saving(name, value),
            model_type=model_type,
            patch=("alibi", {}),
        )
        for model_type, name, value, message in SAVED
    ]
    option: Errors = errors.OptionOutOfRange
    found += [
        Row(60, "whole numbers", errors.UnsupportedModel, r"up_proj.+torch\.int8.+quantization_config", whole_numbers),
        Row(62, "list in a list", errors.UnknownScheme, "list of names", patching(["yarn", ["logn"]])),
        Row(62, "negative slope", option, "slopes.+greater than or equal to 0",
            patching("alibi", slopes=[0.5, 1.0, 1.0, -1.0])),
        Row(62, "scale below a token", option, "scale_base.+greater than or equal to 1",
            patching("xpos", scale_base=1e-6)),
    ]  # fmt: skip
    return found

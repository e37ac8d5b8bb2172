"""Live models whose configuration is not what they were built with, or that are on meta, distributed or quantised."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import hf_posenc
from hf_posenc import errors
from hf_posenc.checks.tiny_models import TRAINED_LENGTH, tiny_model

from .row import NAN, Act, Errors, Row, Scene

HOST: Errors = errors.HostConfigInvalid
ROTATION = {"rope_type": "default", "rope_theta": 1e4}
LYING: list[tuple[str, str, Any, Errors, str]] = [
    ("llama", "num_attention_heads", 8, HOST, "4 heads"),
    ("llama", "num_key_value_heads", 1, HOST, "2 of keys"),
    ("llama", "num_key_value_heads", None, errors.AdapterInvalid, "None"),
    ("llama", "max_position_embeddings", None, HOST, "max_position_embeddings"),
    ("llama", "rope_parameters", None, HOST, "makes no rotation"),
    ("llama", "rope_parameters", {"rope_type": "default"}, HOST, "rope_theta"),
    ("bert", "num_attention_heads", 2, HOST, "4 heads"),
]
ODD: list[tuple[str, Any, str]] = [
    ("rope_parameters", ROTATION | {"original_max_position_embeddings": 0}, "original_max"),
    ("rope_parameters", ROTATION | {"rope_type": "linear", "factor": NAN}, "factor"),
    ("rope_parameters", ROTATION | {"rope_theta": 0}, "rope_theta"),
    ("rope_parameters", ROTATION | {"rope_type": "yarm"}, "Did you mean 'yarn'"),
    ("max_position_embeddings", 64.0, "64.0"),
]


def patched(name: str, value: Any, scheme: str = "alibi", **lengths: Any) -> Act:
    """Patch a model whose live configuration says something else; then put it right, so that the rest compares."""

    def act(scene: Scene) -> object:
        return within(scene.model.config, name, value, lambda: hf_posenc.patch_model(scene.model, scheme, **lengths))

    return act


def within(config: Any, name: str, value: Any, act: Callable[[], object]) -> object:
    """``act`` while an entry of a configuration is another."""
    entries = vars(config)
    before, entries[name] = entries[name], copy.deepcopy(value)
    try:
        return act()
    finally:
        entries[name] = before


def rows() -> list[Row]:
    """All of them."""
    yarn = {"scheme": "yarn", "trained_length": TRAINED_LENGTH, "factor": 2}
    return [
        *(
            Row(f"{kind} {name} {value}", error, key, patched(name, value), kind)
            for kind, name, value, error, key in LYING
        ),
        *(Row(f"live {name} {value}", HOST, key, patched(name, value, **yarn)) for name, value, key in ODD),
        *wrapped(),
    ]  # fmt: skip


UNSUPPORTED = errors.UnsupportedModel


class Whole(DistributedDataParallel):
    """The wrapper as `patch_model` sees it, without processes."""

    def __init__(self, module: nn.Module) -> None:
        nn.Module.__init__(self)
        self.module = module


class DTensor(nn.Parameter):
    """A weight of which each device has a part, by its name."""


def made(change: Callable[[nn.Module], nn.Module], scheme: str = "yarn") -> Act:
    """Patch a changed copy of the model."""
    return lambda scene: hf_posenc.patch_model(change(copy.deepcopy(scene.model)), scheme)


def half_meta(model: Any) -> nn.Module:
    """A layer has no values."""
    model.base_model.layers[0].to("meta")
    return model


def apart(model: Any) -> nn.Module:
    """One weight is spread over devices, as FSDP leaves it."""
    projection = model.base_model.layers[1].self_attn.q_proj
    projection.weight = DTensor(projection.weight.detach())
    return model


def wrapped() -> list[Row]:
    """All of them."""
    return [
        Row("a layer on meta", UNSUPPORTED, "meta", made(half_meta, "kerple")),
        Row("DDP and a learned scheme", UNSUPPORTED, "DistributedDataParallel", made(Whole, "kerple")),
        Row("DDP and a frozen table", UNSUPPORTED, "freezes", made(Whole, "alibi"), "gpt2"),
        Row("FSDP", UNSUPPORTED, "DTensor", made(apart)),
        Row("float8", UNSUPPORTED, "float8_e4m3fn", made(lambda model: model.to(torch.float8_e4m3fn))),
        Row("complex", UNSUPPORTED, "complex64", made(lambda model: model.to(torch.complex64))),
        *(
            Row(
                f"two models, with {other}",
                UNSUPPORTED,
                "several models",
                made(lambda model, other=other: nn.ModuleDict({"a": model, "b": tiny_model(other)})),
            )
            for other in ("gpt2", "bert")
        ),
    ]

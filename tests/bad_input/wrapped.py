"""Models that are on the meta device, distributed or quantised by hand."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import hf_posenc
from hf_posenc import errors
from hf_posenc.checks.tiny_models import tiny_model

from .row import Act, Row

ODD = errors.UnsupportedModel


class Whole(DistributedDataParallel):
    """What `patch_model` sees of such a wrapper, without processes."""

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


def rows() -> list[Row]:
    """All of them."""
    return [
        Row("a layer on meta", ODD, "meta", made(half_meta, "kerple")),
        Row("DDP and a learned scheme", ODD, "DistributedDataParallel", made(Whole, "kerple")),
        Row("DDP and a frozen table", ODD, "freezes", made(Whole, "alibi"), "gpt2"),
        Row("FSDP", ODD, "DTensor", made(apart)),
        Row("float8", ODD, "float8_e4m3fn", made(lambda model: model.to(torch.float8_e4m3fn))),
        Row("complex", ODD, "complex64", made(lambda model: model.to(torch.complex64))),
        Row("two models", ODD, "2 models", made(lambda model: nn.ModuleDict({"a": model, "b": tiny_model("gpt2")}))),
    ]

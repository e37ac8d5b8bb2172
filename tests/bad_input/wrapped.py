"""Rows 22 and 23: models that are meta, compiled, wrapped, distributed or quantised: patched completely or refused."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel

import hf_posenc
from hf_posenc import errors
from hf_posenc.checks.tiny_models import tiny_model

from .row import Row, Scene

ODD = errors.UnsupportedModel


class Whole(DistributedDataParallel):
    """What `patch_model` sees of such a wrapper, without processes."""

    def __init__(self, module: nn.Module) -> None:
        nn.Module.__init__(self)
        self.module = module


class Sharded(FullyShardedDataParallel):
    """The same of FSDP, which needs a device of its own."""

    def __init__(self, module: nn.Module) -> None:
        nn.Module.__init__(self)
        self._fsdp_wrapped_module = module

    def named_parameters(self, *args: Any, **kwargs: Any) -> Any:
        """As any module."""
        return nn.Module.named_parameters(self, *args, **kwargs)


class DTensor(nn.Parameter):
    """A weight of which each device has a part, by its name."""


def made(change: Callable[[nn.Module], nn.Module], scheme: str = "yarn") -> Callable[[Scene], object]:
    """Patch a changed copy of the model."""
    return lambda scene: hf_posenc.patch_model(change(copy.deepcopy(scene.model)), scheme)


def half_meta(model: Any) -> nn.Module:
    """A layer has no values."""
    model.base_model.layers[0].to("meta")
    return model


def apart(model: Any) -> nn.Module:
    """One weight is spread over devices."""
    projection = model.base_model.layers[1].self_attn.q_proj
    projection.weight = DTensor(projection.weight.detach())
    return model


def whole_numbers(model: nn.Module) -> nn.Module:
    """Weights cast to int8, as if that were quantisation."""
    for module in model.modules():
        for name, weight in list(module.named_parameters(recurse=False)):
            setattr(module, name, nn.Parameter(weight.to(torch.int8), requires_grad=False))
    return model


def rows() -> list[Row]:
    """All of them."""
    two = lambda model: nn.ModuleDict({"one": model, "other": tiny_model("gpt2")})  # noqa: E731
    return [
        Row(22, "a layer on meta", ODD, "LlamaModel.+float32.+cannot be run as it is.+meta", made(half_meta, "kerple")),
        Row(23, "DDP and a learned scheme", ODD, "DistributedDataParallel.+adds or freezes", made(Whole, "kerple")),
        Row(
            23, "DDP and a frozen table", ODD, "freezes. Patch the model first", made(Whole, "alibi"), model_type="gpt2"
        ),
        Row(23, "FSDP", ODD, "FullyShardedDataParallel.+shard it afterwards", made(Sharded)),
        Row(23, "FSDP's second form", ODD, "DTensor.+shard it afterwards", made(apart)),
        Row(23, "int8 by hand", ODD, "torch.int8 numbers.+Embedding", made(whole_numbers)),
        Row(23, "float8", ODD, "float8_e4m3fn.+cannot be run", made(lambda m: m.to(torch.float8_e4m3fn))),
        Row(23, "complex", ODD, "complex64 numbers.+Embedding", made(lambda m: m.to(torch.complex64))),
        Row(20, "two models", ODD, "holds 2 models, a LlamaModel and a GPT2Model", made(two)),
    ]

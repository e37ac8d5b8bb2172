"""Layers on two devices: each finds shared tensors on its own device.

No second device is needed. Under `FakeTensorMode` tensors have shapes and devices and no values, and whatever would
bring two devices together raises; ``lazy`` is a device type that every build of torch knows.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from accelerate.hooks import AlignDevicesHook, add_hook_to_module
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import PreTrainedModel

from hf_posenc.forward.positions import ForwardContext, context_of

from .models import LEARNED, SECOND, patched

HERE, THERE = torch.device("lazy:0"), torch.device("lazy:1")


class Moving(AlignDevicesHook):
    """accelerate's, of weights that are where they belong already."""

    def init_hook(self, module: nn.Module) -> nn.Module:
        return module


def device_of(name: str, family: str) -> torch.device:
    """Where a module or a weight of that name belongs."""
    return THERE if any(f"{name}.".startswith(f"{block}.") for block in SECOND[family]) else HERE


def spread(model: PreTrainedModel, family: str) -> PreTrainedModel:
    """The model over two devices, as `dispatch_model` would leave it; without values."""
    for prefix, module in model.named_modules():
        device = device_of(prefix, family)
        for held in (module._parameters, module._buffers):
            for name, value in held.items():
                if value is not None:
                    empty = torch.empty(value.shape, dtype=value.dtype, device=device)
                    held[name] = nn.Parameter(empty, requires_grad=False) if name in module._parameters else empty
    for prefix, module in list(model.named_modules()):
        device = HERE if prefix == "" else device_of(prefix, family)
        if len(module.state_dict()) > 0:
            add_hook_to_module(module, Moving(device, skip_keys=model._skip_keys_device_placement))
    return model


@pytest.fixture
def without_values() -> Iterator[None]:
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        yield


SCHEMES = (
    *(scheme for scheme in LEARNED if scheme != "fire"),
    "yarn",
    "alibi",
    "sinusoidal",
    "self_extend",
    "transformer_xl",
)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_layer_finds_what_it_needs(scheme: str, family: str, request: pytest.FixtureRequest) -> None:
    if (scheme, family) == ("self_extend", "gpt2"):
        scheme = "rope+self_extend"
    model = patched(family, scheme)
    request.getfixturevalue("without_values")
    spread(model, family)
    tokens = torch.zeros(2, 40, dtype=torch.long, device=HERE)
    first = model(input_ids=tokens)
    assert first.logits.device == THERE
    assert model(input_ids=tokens[:, :1], past_key_values=first.past_key_values).logits.device == THERE


def test_two_devices_cannot_be_brought_together_here(without_values: None) -> None:
    """The control: a mistake would raise."""
    with pytest.raises(RuntimeError, match="device"):
        torch.zeros(2, device=HERE) + torch.zeros(2, device=THERE)


def test_padding_and_coordinates_follow_the_layer(without_values: None) -> None:
    padding = torch.ones(2, 9, dtype=torch.bool, device=HERE)
    context = ForwardContext(padding, False, coordinates=torch.zeros(2, 9, 3, device=HERE))
    contexts = [
        context_of(torch.empty(2, 4, 9, 16, device=device), None, 0, None, context, causal=True, sizes=(0, 9))
        for device in (HERE, THERE)
    ]
    for ctx, device in zip(contexts, (HERE, THERE), strict=True):
        held = (ctx.query_positions, ctx.key_positions, ctx.real_keys, ctx.coordinates, ctx.constant((1.0, 2.0)))
        assert {value.device for value in held if value is not None} == {device}

"""Check that a PEFT adapter fits the base model it is loaded on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from hf_posenc.checkpoints.adapter_folder import PEFT_WEIGHTS, AdapterFolder
from hf_posenc.errors import PeftAdapterMismatch
from hf_posenc.patching.patch import patch_model, unpatch_model
from hf_posenc.patching.peft_sidecar import position_parameters
from hf_posenc.patching.scheme_config import SchemeConfig
from hf_posenc.patching.state import base_model_of, stacks_or_model

if TYPE_CHECKING:
    from peft import PeftModel


def match_base(model: nn.Module, adapter: AdapterFolder, *, patch: bool) -> None:
    """Check that a base carries the scheme of an adapter. If it does not, patch it if ``patch`` allows that."""
    expected, folder = adapter.scheme, adapter.path
    present = SchemeConfig.of_model(model)
    if present == expected:
        return
    if expected is None:
        raise PeftAdapterMismatch(
            f"The PEFT adapter in {folder} was trained without a scheme, but this base carries {present}. "
            "Call unpatch_model(base) first. You can call patch_model afterwards."
        )
    if not patch:
        raise PeftAdapterMismatch(
            f"The PEFT adapter in {folder} was trained under scheme {expected}, but this base carries "
            f"{present or 'none'}. "
            'Load a base that matches, or patch this one by load_peft_adapter(base, folder, patch="apply").'
        )
    if present is not None:
        unpatch_model(model)
    base, host = base_model_of(stacks_or_model(model)[0])
    length = host.host_length(base.config)
    if length != expected.host_length:
        raise PeftAdapterMismatch(
            f"The PEFT adapter in {folder} was trained on a base for {expected.host_length} positions, and this one "
            f"has {length}. Load the base it was trained on."
        )
    patch_model(model, **expected.arguments())


def check_other_adapters(model: PeftModel, name: str, adapter: AdapterFolder) -> None:
    """Refuse an adapter that conflicts with the adapters that a model has already."""
    if name in model.peft_config:
        raise PeftAdapterMismatch(
            f"This model carries a PEFT adapter called {name!r} already. Pass another adapter_name, or the base: "
            "model.unload()."
        )
    live = position_parameters(model)
    for key, value in adapter.position_parameters().items():
        if key in live and not torch.equal(live[key].detach().cpu(), value):
            raise PeftAdapterMismatch(
                f"The PEFT adapter in {adapter.path} was trained with another {key!r} than this model's "
                'adapters share. Load it on a base of its own, or train such adapters with modules_to_save=["posenc"].'
            )


def check_complete(model: PeftModel, adapter: AdapterFolder, weights: Mapping[str, Tensor], name: str) -> None:
    """Refuse an adapter whose file lacks weights, or has weights for layers that the model does not have.

    PEFT only warns about missing weights and initialises them at random. It drops additional weights silently.
    """
    from peft import get_peft_model_state_dict
    from peft.mapping import PEFT_TYPE_TO_PREFIX_MAPPING

    file = adapter.path / PEFT_WEIGHTS
    expected = get_peft_model_state_dict(model, adapter_name=name, save_embedding_layers=False)
    missing = sorted(expected.keys() - weights.keys())
    if missing:
        raise PeftAdapterMismatch(f"{file} lacks {missing[0]!r}. Copy or save the adapter again.")
    prefix = PEFT_TYPE_TO_PREFIX_MAPPING.get(model.peft_config[name].peft_type)
    unplaced = sorted(key for key in weights.keys() - expected.keys() if prefix is not None and prefix in key)
    if unplaced:
        raise PeftAdapterMismatch(
            f"{file} has {unplaced[0]!r}, but this base has no such layer. Load the base it was trained on."
        )


def load_position_parameters(model: nn.Module, adapter: AdapterFolder, saved: Mapping[str, Tensor]) -> None:
    """Copy the position parameters of an adapter's folder into ``model``."""
    live = position_parameters(model)
    different = sorted(saved.keys() ^ live.keys()) or [key for key in saved if saved[key].shape != live[key].shape]
    if different:
        raise PeftAdapterMismatch(
            f"{adapter.path} and the base differ in the position parameter {different[0]!r}. Save the adapter again."
        )
    for name, value in saved.items():
        live[name].data.copy_(value)

"""The patch of a live model: its record, its report, its scheme."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import nn
from transformers import PreTrainedModel

from hf_posenc.errors import (
    NotPatched,
    UnsupportedModel,
    shown,
)
from hf_posenc.patches.general.adapter import GeneralAdapter, unsupported
from hf_posenc.patches.registry import adapter_failures, adapter_of_config

if TYPE_CHECKING:
    from hf_posenc.patches.adapter import Adapter
    from hf_posenc.patching.config_changes import ConfigRecord
    from hf_posenc.patching.report import PatchReport
    from hf_posenc.schemes.base import Scheme
    from hf_posenc.schemes.spec import Layout

STASH = "posenc_patch"  # of a base model: its `Patch`


@dataclass
class Patch:
    """What it takes to undo a patch or to change its factor, and its report."""

    model: nn.Module | None = None
    classes: list[tuple[nn.Module, type[nn.Module]]] = field(default_factory=list)
    frozen: list[tuple[nn.Module, str]] = field(default_factory=list)  # by name: offloading makes new parameters
    unsplit_modules: list[tuple[nn.Module, Any]] = field(default_factory=list)
    configs: list[tuple[nn.Module, Any]] = field(default_factory=list)
    report: PatchReport | None = None
    record: ConfigRecord | None = None
    layout: Layout | None = None


def describe(model: nn.Module) -> PatchReport:
    """The report of a patched model.

    Raises:
        NotPatched: the model carries no scheme.
    """
    report = patch_of(base_model_of(model)[0]).report
    if report is None:
        raise NotPatched("The patch of this model is not finished. Wait for patch_model to return.")
    return report


def is_patched(model: nn.Module) -> bool:
    """Whether the model carries a scheme.

    Raises:
        UnsupportedModel: it is no model at all.
    """
    if not isinstance(model, nn.Module):
        raise UnsupportedModel(f"A live model is needed, got {shown(model)}. Load it with hf_posenc.from_pretrained.")
    return any(STASH in m.__dict__ for m in model.modules())


def patch_of(base: nn.Module) -> Patch:
    """The patch a base model carries.

    Raises:
        NotPatched: it carries none.
    """
    patch = base.__dict__.get(STASH)
    if patch is None:
        raise NotPatched("This model carries no scheme. Call patch_model(model, scheme) first.")
    return patch


def base_model_of(model: nn.Module) -> tuple[nn.Module, Adapter]:
    """The base model inside ``model``, and its adapter.

    Raises:
        UnsupportedModel: no adapter fits.
    """
    if not isinstance(model, nn.Module):
        raise UnsupportedModel(f"A live model is needed, got {shown(model)}. Load it with hf_posenc.from_pretrained.")
    for module, cls in adapted_modules(model):
        adapter = cls()
        if (base := adapter.base_model(module)) is not None:
            return base, adapter
    general = GeneralAdapter()
    if (base := general.base_model(model)) is not None:
        failures = adapter_failures()
        if repr(general.name) in failures:  # somebody installed an adapter for this very model
            raise UnsupportedModel(f"The adapter installed for {general.name!r} models cannot be used.{failures}")
        return base, general
    reason = unsupported(model)
    raise type(reason)(f"{reason}{adapter_failures()}")


def adapted_modules(model: nn.Module) -> Iterator[tuple[PreTrainedModel, type[Adapter]]]:
    """The models of transformers within ``model``, itself included, whose ``config.model_type`` has an adapter."""
    for module in model.modules():
        if isinstance(module, PreTrainedModel) and (cls := adapter_of_config(module.config)) is not None:
            yield module, cls


def scheme_of(model: nn.Module) -> Scheme:
    """The scheme object of a patched model (of its first layer, where layers differ).

    Raises:
        NotPatched: the model carries no scheme.
    """
    base, _ = base_model_of(model)
    patch_of(base)
    return next(m.scheme for m in base.modules() if "posenc_owner" in m.__dict__)  # type: ignore[return-value]

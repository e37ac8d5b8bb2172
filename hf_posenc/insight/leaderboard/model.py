"""Load a model to choose its schemes and to time them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hf_posenc.checkpoints.hub import HUB_OPTIONS
from hf_posenc.checkpoints.unpatched import load_unpatched
from hf_posenc.errors import AlreadyPatched
from hf_posenc.eval import MeasuredModel
from hf_posenc.eval.quiet import suppress_output
from hf_posenc.insight.bench.devices import Device, device_of
from hf_posenc.patching.state import base_model_of, is_patched
from hf_posenc.patching.trained_length import unscaled_geometry

LOADING = ("dtype", "attn_implementation", *HUB_OPTIONS)


@dataclass(frozen=True)
class Measurable:
    """A model without a scheme.

    Attributes:
        model: the model.
        trained_length: tokens, by its configuration.
        cases: of a benchmark that it can run; an encoder decodes nothing.
        device: where it is timed, which is where its scores are measured.
    """

    model: Any
    trained_length: int
    cases: tuple[str, ...]
    device: Device


def loading_of(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `PosEncLM` that say which model is loaded, as `hf_posenc.from_pretrained` takes them."""
    chosen = {name: arguments[name] for name in LOADING if arguments.get(name) is not None}
    return chosen | {"peft_adapter": arguments.get("peft") or None}


def loaded(given: MeasuredModel) -> Measurable:
    """Load a model by its name, or take a live one.

    Raises:
        AlreadyPatched: a live model is patched.
        PosEncError: it cannot be loaded, or there is no adapter for it.
    """
    model = given.model
    if isinstance(model, (str, os.PathLike)):
        device = device_of(given.arguments.get("device"))
        with suppress_output(True):
            model, _ = load_unpatched(model, **loading_of(given.arguments))
    else:
        device = device_of(str(model.device))
    if is_patched(model):
        raise AlreadyPatched(
            "The model is patched, and a leaderboard puts its schemes on the unpatched model. Call "
            "unpatch_model(model) first."
        )
    base, adapter = base_model_of(model)
    geometry = unscaled_geometry(adapter, base.config)
    cases = ("prefill", "decode") if geometry.causal else ("prefill",)
    return Measurable(model, geometry.trained_length, cases, device)

"""A patched model as a plain checkpoint: where transformers has a RoPE type for the scheme, nobody needs this package.

Any program that reads Llama checkpoints then computes the same: transformers itself, vLLM, and lm-eval through it.

Two schemes go by the length of a text, and transformers has them, too, but turns all rows of a text by its whole length
and a cached key by the length it came at. Up to the trained length both compute the same (transformers' ``dynamic``
until it has read a longer text, which it remembers in one of exactly the trained length); `export_native` warns.
"""

from __future__ import annotations

import copy
import os
import warnings
from typing import Any

import torch
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from hf_posenc.core.files.paths import folder_to_write
from hf_posenc.core.files.staged import staged
from hf_posenc.core.geometry import HostRotary, Rotation
from hf_posenc.errors import NotExpressible, OnlyWithinTrainedLength
from hf_posenc.patches.attention import PatchedAttention
from hf_posenc.patching.expected_effect import same_rotation
from hf_posenc.patching.state import base_model_of, describe, scheme_of
from hf_posenc.patching.stored.config_guard import ROTATION_KEY, SCHEME_KEY
from hf_posenc.schemes.base import overrides

HOOKS = ("regions", "row_rotation", "bias", "values", "embed", "prepare", "query_scale", "row_scale", "sink", "visible")
LENGTH_DEPENDENT = ("regions", "row_rotation")


def export_native(model: Any, folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Save a patched Llama so that plain transformers, without this package, computes the same logits.

    Args:
        model: a patched model; it stays as it is.
        folder: where the checkpoint goes.

    Returns:
        The ``rope_parameters`` written into its ``config.json``.

    Warns:
        OnlyWithinTrainedLength: logits are the same up to the trained length, and others beyond.

    Raises:
        NotPatched: the model carries no scheme.
        FolderUnusable: the folder is a file.
        NotExpressible: transformers has no RoPE type that computes this scheme; or the model has a PEFT adapter.
    """
    _, adapter = base_model_of(model)
    if hasattr(model, "peft_config"):
        raise NotExpressible(
            f"This {type(model).__name__} has a PEFT adapter, which is no part of a plain checkpoint. "
            "Call its merge_and_unload() first, and pass what that returns."
        )
    report, scheme = describe(model), scheme_of(model)
    folder = folder_to_write(folder)
    parameters, short = native_parameters(model)
    config = copy.deepcopy(model.config)
    for name in (SCHEME_KEY, ROTATION_KEY):
        if hasattr(config, name):
            delattr(config, name)
    config.rope_parameters = parameters
    if short and "original_max_position_embeddings" not in parameters:
        config.max_position_embeddings = report.trained_length  # where transformers looks for it
    rotary = (
        rotary_at_length(config, report.trained_length)
        if short
        else adapter.geometry(config, trained_length=1, target_length=1).rotary
    )
    if rotary is None or not _same(rotary, scheme, report.trained_length if short else None):
        raise NotExpressible(
            f"transformers computes another rotation than scheme {report.scheme!r} from {parameters}. Save it with "
            "model.save_pretrained and load it with hf_posenc.from_pretrained."
        )
    with torch.device("meta"):
        plain = type(model)(config)
    plain.load_state_dict(model.state_dict(), assign=True)
    plain.tie_weights()
    plain.generation_config = getattr(model, "generation_config", None)
    with staged(folder) as beside:
        plain.save_pretrained(beside)
    if short:
        warnings.warn(
            f"In texts longer than {report.trained_length} tokens transformers computes something else than scheme "
            f"{report.scheme!r}. Keep to that length there, or save with model.save_pretrained and load with "
            "hf_posenc.from_pretrained.",
            OnlyWithinTrainedLength,
            stacklevel=2,
        )
    return parameters


def merge_adapter(model: Any) -> Any:
    """A model with its PEFT adapter added to the weights; one without an adapter as it is.

    Raises:
        NotExpressible: the adapter is of a kind that stands beside the weights.
    """
    if not hasattr(model, "peft_config"):
        return model
    if not hasattr(model, "merge_and_unload"):
        raise NotExpressible(
            f"The PEFT adapter of this {type(model).__name__} cannot be merged into the weights. "
            "Load it with hf_posenc.from_pretrained wherever it is used."
        )
    return model.merge_and_unload()


def native_parameters(model: Any) -> tuple[dict[str, Any], bool]:
    """``rope_parameters`` for a patched model's scheme, and whether they are the same up to the trained length only.

    Raises:
        NotExpressible: it has none, does more than rotate, or is not the scheme of every layer.
    """
    scheme, name = scheme_of(model), describe(model).scheme
    everyones = all(module.scheme is scheme for module in model.modules() if isinstance(module, PatchedAttention))
    alone = len(scheme.schemes) == 1 and everyones
    everywhere = scheme.native() if alone else None
    within = scheme.native_within_trained() if alone and everywhere is None else None
    more = [hook for hook in HOOKS if overrides(scheme, hook) and not (within and hook in LENGTH_DEPENDENT)]
    parameters = everywhere or within
    if parameters is None or more:
        raise NotExpressible(
            f"Scheme {name!r} has no counterpart among transformers' RoPE types. Save it with model.save_pretrained "
            "and load it with hf_posenc.from_pretrained."
        )
    if parameters["rope_type"] not in {"default", *ROPE_INIT_FUNCTIONS}:
        raise NotExpressible(
            f"transformers {transformers.__version__} does not know the RoPE type {parameters['rope_type']!r} yet. "
            "Update it, or save the model with model.save_pretrained."
        )
    return parameters, everywhere is None


def rotary_at_length(config: Any, length: int) -> HostRotary:
    """What transformers computes in texts of ``length``, from a configuration that goes by the length."""
    parameters = config.rope_parameters
    frequencies, factor = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config, torch.device("cpu"), seq_len=length)
    return HostRotary(Rotation(tuple(frequencies.double().tolist())), parameters["rope_theta"], factor**2)


def _same(rotary: HostRotary, scheme: Any, length: int | None) -> bool:
    own = scheme.rotation() if length is None else scheme.rotation_of(length)
    return same_rotation(rotary.rotation, own) and abs(rotary.logit_scale - scheme.logit_scale()) <= (
        1e-6 * rotary.logit_scale
    )

"""Build a model with its saved scheme, in a subclass that patches in its constructor, and load its weights.

transformers' loader builds the model on the meta device, where tensors have no values. So the effect probe of the patch
waits until the weights are loaded.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from hf_posenc.checkpoints.validate import check_layer_count
from hf_posenc.core.files.hf_errors import explained_errors
from hf_posenc.errors import CheckpointMismatch, PosEncError
from hf_posenc.patching.config_guard import CODE_KEY, PATCH_KEYS, guarded_class
from hf_posenc.patching.patch import patch_model
from hf_posenc.patching.proof import EffectProbe
from hf_posenc.patching.scheme_config import SchemeConfig, warn_of_changed_code
from hf_posenc.patching.state import base_model_of, patch_of, stacks_or_model
from hf_posenc.patching.swap import freeze, replaced_parameters
from hf_posenc.patching.text_limits import raise_limits
from hf_posenc.patching.weights import check_finite, keep_arranged

INITIALISER = "initialize_weights"  # method that the loader calls for missing weights
PATCHED_CLASS_MARK = "posenc_restoring"  # attribute of the classes that `patched_class` makes


def patched_class(cls: type[PreTrainedModel], scheme: SchemeConfig) -> type[PreTrainedModel]:
    """A subclass of ``cls`` with the same name, whose constructor builds the unpatched model and patches it."""

    def __init__(self: Any, config: Any, *args: Any, **kwargs: Any) -> None:
        SchemeConfig.of_config(vars(config), "this checkpoint")  # again, as keywords of the call may have changed it
        config = copy.deepcopy(config)
        config.max_position_embeddings = scheme.host_length
        warn_of_changed_code(getattr(config, CODE_KEY, None), scheme.layout)
        for name in PATCH_KEYS:
            if hasattr(config, name):
                delattr(config, name)
        cls.__init__(self, config, *args, **kwargs)
        self.__class__ = cls  # before the patch, which may change it again
        patch_model(self, **scheme.arguments())
        self.__dict__[INITIALISER] = partial(initialise_at_length, self, scheme.host_length)

    methods = {"__init__": __init__, "config_class": guarded_class(cls.config_class), PATCHED_CLASS_MARK: True}
    return type(cls.__name__, (cls,), {**methods, "__module__": cls.__module__, "__qualname__": cls.__qualname__})


def load_weights(
    cls: type[PreTrainedModel],
    name: str | None,
    scheme: SchemeConfig | None,
    *args: Any,
    keywords: Iterable[str] = (),
    **hf_kwargs: Any,
) -> tuple[PreTrainedModel, dict[str, Any]]:
    """Build ``cls`` with the scheme its checkpoint was saved with, and load the weights, from safetensors only.

    Returns:
        The model, of class ``cls``, and transformers' loading info.
    """
    where = name or "in memory"  # a configuration and a state dict
    hf_kwargs |= {"output_loading_info": True, "use_safetensors": True}
    with explained_errors(where, keywords):
        try:
            loader = cls if scheme is None else patched_class(cls, scheme)
            model, info = loader.from_pretrained(name, *args, **hf_kwargs)
        except PosEncError as error:
            if scheme is None:
                raise
            raise CheckpointMismatch(
                f"{where} carries scheme {scheme}, which does not fit its {cls.__name__}: {error} "
                "Save the patched model again with save_pretrained."
            ) from error
        check_no_missing_weights(model, info, where)
        if hf_kwargs.get("config") is None:  # a configuration of the caller may not describe these weights
            check_layer_count(where, vars(model.config), info["unexpected_keys"], unread=True)
        vars(model).pop(INITIALISER, None)
        keep_arranged(model)
        check_finite(model)
        for part in stacks_or_model(model) if scheme is not None else ():
            finish_part(part)
        raise_limits(model, host_length=None if scheme is None else scheme.host_length)
    return model, info


def initialise_at_length(model: PreTrainedModel, length: int) -> None:
    """Initialise missing weights with the unpatched length in all configurations: some buffers have this length."""
    bases: list[Any] = [base_model_of(part)[0] for part in stacks_or_model(model)]
    configs = {id(base.config): base.config for base in bases}
    patched_lengths = {key: config.max_position_embeddings for key, config in configs.items()}
    try:
        for config in configs.values():
            config.max_position_embeddings = length
        type(model).initialize_weights(model)
    finally:
        for key, config in configs.items():
            config.max_position_embeddings = patched_lengths[key]


def check_no_missing_weights(model: PreTrainedModel, info: Mapping[str, Any], name: str) -> None:
    """Refuse a checkpoint that lacks weights of the base model, which transformers would initialise at random.

    Heads and poolers may be missing, because a base model is saved without them.
    """
    prefix = f"{model.base_model_prefix}." if hasattr(model, model.base_model_prefix) else ""
    of_base = (key for key in info.get("missing_keys", ()) if key.startswith(prefix))
    missing = sorted(key for key in of_base if "pooler" not in key.split("."))
    mismatched = sorted(str(key) for key, *_ in info.get("mismatched_keys", ()))
    if missing:
        problem = f"lacks the weight {missing[0]!r}"
    elif mismatched:
        problem = f"has the weight {mismatched[0]!r} in another shape"
    else:
        return
    raise CheckpointMismatch(
        f"The checkpoint {name} {problem}, which transformers would initialise at random. Copy or save it again."
    )


def finish_part(model: nn.Module) -> None:
    """Freeze unused parameters of a loaded model with one base model, and prove the effect of its patch."""
    patch = patch_of(base_model_of(model)[0])
    freeze(patch, replaced_parameters(patch))  # again, because the loader has replaced the parameters
    if patch.report.proof.verdict == "deferred":
        patch.report = replace(patch.report, proof=EffectProbe(patch).verdict())

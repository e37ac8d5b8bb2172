"""Hooks in PEFT: adapters on a patched base train, save and load its learned positions, whoever calls PEFT.

`hf_posenc.checkpoints.peft_methods` puts them in the place of PEFT's methods. On a model without a
scheme, and a folder without a sidecar, PEFT's own methods run and nothing else.

inject   learned positions train with the adapter, in float32, and its configuration will write the sidecar; what would
         adapt a table that the scheme does not read row by row is refused
load     the adapter's scheme must be the base's, and its file complete; afterwards the positions saved in the sidecar
         are those of the model
save     the sidecar is written, and a model card that says what the adapter needs; where PEFT converts PiSSA or OLoRA
         to LoRA, it loads what the adapter began from beside it, whose positions are not those of the model
prepare  PEFT's prompts are put before a generated text once, under whatever name transformers has for the KV cache
merge    what trained in float32 gets the dtype of the base
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from hf_posenc.checkpoints.adapter_card import write_adapter_card
from hf_posenc.checkpoints.adapter_checks import (
    check_complete,
    check_other_adapters,
    load_position_parameters,
    match_base,
)
from hf_posenc.checkpoints.adapter_folder import read_adapter_weights, read_position_parameters
from hf_posenc.checkpoints.auto import auto_enabled
from hf_posenc.checkpoints.peft_methods import FOLDER_ARGUMENTS, check_methods
from hf_posenc.checkpoints.prompts import fill_in_shapes
from hf_posenc.checkpoints.prompts import preparing as preparing
from hf_posenc.checkpoints.scheme_adapter import scheme_adapter
from hf_posenc.core.tested_versions import beyond_tested
from hf_posenc.patches.shared.position_table import check_adapted_tables
from hf_posenc.patching.float32 import keep_in_float32, restore_dtype
from hf_posenc.patching.rollback import rollback_on_error
from hf_posenc.patching.state import is_patched, scheme_holder
from hf_posenc.patching.stored.peft_sidecar import (
    CONVERTED_FROM,
    position_parameters,
    unguard_adapter_config,
    write_sidecar_on_save,
)

Hook = Callable[..., Any]


def refusing(original: Hook, *args: Any, **kwargs: Any) -> Any:
    """Any of them, where one lacks: a patched model is refused, since what is hooked would do half of it.

    Raises:
        HostChanged: the model is patched.
    """
    models = [one for one in (*args, *kwargs.values()) if isinstance(one, nn.Module) and vars(one).get("_modules")]
    if any(is_patched(one) for one in models):
        check_methods()
    return original(*args, **kwargs)


def injecting(original: Hook, model: Any, *args: Any, **kwargs: Any) -> Any:
    """``PeftModel(…)``, ``add_adapter``: the learned positions of the base train with what PEFT has added.

    Raises:
        TrainingImpossible: PEFT would adapt a position table that the scheme does not read row by row.
    """
    given = inspect.signature(original).bind(model, *args, **kwargs).arguments
    base = given.get("model", model)  # of a constructor, an argument
    if isinstance(base, nn.Module) and base._modules:
        fill_in_shapes(given.get("peft_config", given.get("adapter_config")), base)
    if not isinstance(base, nn.Module) or not is_patched(base):
        return original(model, *args, **kwargs)
    beyond_tested("peft")
    with rollback_on_error(base):
        result = original(model, *args, **kwargs)
        check_adapted_tables(base)
    join_training(model, float32=given.get("autocast_adapter_dtype", True))
    return result


def loading_on_base(original: Hook, cls: type, model: nn.Module, model_id: Any, *args: Any, **kwargs: Any) -> Any:
    """``PeftModel.from_pretrained``: refuse a base under another scheme before PEFT changes it."""
    adapter = scheme_adapter(model_id, kwargs)
    if adapter is None:
        return original(cls, model, model_id, *args, **kwargs)
    beyond_tested("peft")
    with rollback_on_error(model):
        match_base(model, adapter, patch=auto_enabled() and not is_patched(model))
        return original(cls, model, model_id, *args, **kwargs)


def loading_into(original: Hook, model: Any, *args: Any, **kwargs: Any) -> Any:
    """``load_adapter``, which `Trainer` resumes by: check scheme and weights, and restore the sidecar's positions."""
    given = inspect.signature(original).bind(model, *args, **kwargs).arguments
    options = {**given, **given.get("kwargs", {}), **given.get("adapter_kwargs", {})}
    folder = next((options[name] for name in FOLDER_ARGUMENTS if options.get(name) is not None), None)
    adapter = None if folder is None else scheme_adapter(folder, options)
    if adapter is None or CONVERTED_FROM.get() is not None:
        return original(model, *args, **kwargs)
    beyond_tested("peft")
    parameters, name = read_position_parameters(adapter.path), options.get("adapter_name") or "default"
    loaded = getattr(model, "peft_config", {})
    match_base(model, adapter, patch=auto_enabled() and not loaded and not is_patched(model))
    if loaded and name not in loaded:
        check_other_adapters(model, name, parameters, adapter.path)
    from peft import PeftModel

    weights = read_adapter_weights(adapter.path)
    result = original(model, *args, **kwargs)
    if isinstance(model, PeftModel):
        check_complete(model, weights, adapter.path, name)
    join_training(model, float32=options.get("autocast_adapter_dtype", True))
    load_position_parameters(model, parameters, adapter.path)
    return result


def saving(original: Hook, model: Any, *args: Any, **kwargs: Any) -> Any:
    """``save_pretrained``: the scheme of the base is written beside the adapter."""
    if is_patched(model):
        write_sidecar_on_save(scheme_holder(model), model.peft_config)
    given = inspect.signature(original).bind(model, *args, **kwargs).arguments
    begun = CONVERTED_FROM.set(given.get("path_initial_model_for_weight_conversion"))
    try:
        return original(model, *args, **kwargs)
    finally:
        CONVERTED_FROM.reset(begun)


def describing(original: Hook, model: Any, output_dir: str) -> Any:
    """``create_or_update_model_card``: on a patched base, a card that says what the adapter needs."""
    return write_adapter_card(model, Path(output_dir)) if is_patched(model) else original(model, output_dir)


def unguarding(original: Hook, cls: type, path_json_file: str, **kwargs: Any) -> dict[str, Any]:
    """``PeftConfig.from_json_file``: remove the config guard; whoever loads the weights is hooked as well."""
    return unguard_adapter_config(original(cls, path_json_file, **kwargs), str(path_json_file))


def merging(original: Hook, tuner: Any, *args: Any, **kwargs: Any) -> Any:
    """``merge_and_unload`` and ``unload``: no layer of the base stays in float32."""
    base = original(tuner, *args, **kwargs)
    restore_dtype(base.modules())
    if is_patched(base):
        base.__dict__.pop("peft_config", None)  # which PEFT before 0.19 leaves behind
    return base


def join_training(model: Any, *, float32: bool) -> None:
    """Train the learned positions of a patched base with its adapters, and save them wherever those are saved.

    Args:
        model: a PEFT model, or a model of transformers with adapters.
        float32: whether what trains is kept in float32, as PEFT's ``autocast_adapter_dtype`` says.
    """
    if not is_patched(model):
        return
    training = any(not config.inference_mode for config in model.peft_config.values())
    for parameter in position_parameters(model).values():
        parameter.requires_grad_(training)
    if float32:
        keep_in_float32(model)
    write_sidecar_on_save(scheme_holder(model), model.peft_config)

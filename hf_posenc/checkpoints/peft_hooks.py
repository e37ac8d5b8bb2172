"""Hooks in PEFT: adapters on a patched base train, save and load its learned positions, whoever calls PEFT.

`hf_posenc.checkpoints.peft_methods` puts them in the place of PEFT's methods. On a model without a
scheme, and a folder without a sidecar, PEFT's own methods run and nothing else.

inject   learned positions train with the adapter, in float32, and its configuration will write the sidecar; what would
         adapt a table that the scheme does not read row by row, or weights that are offloaded, is refused
load     the adapter's scheme must be the base's, and its file complete; afterwards the positions saved in the sidecar
         are those of the model
save     the sidecar is written, and a model card that says what the adapter needs; what PEFT would convert to LoRA is
         refused, as it loads what the adapter began from beside it, whose positions are not those of the model
prepare  PEFT's prompts are put before a generated text once, under whatever name transformers has for the KV cache
merge    what trained in float32 gets the dtype of the base
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from hf_posenc.checkpoints.adapter_checks import (
    check_complete,
    check_other_adapters,
    load_position_parameters,
    match_base,
)
from hf_posenc.checkpoints.adapter_folder import AdapterFolder, local_folder
from hf_posenc.checkpoints.auto import auto_enabled
from hf_posenc.checkpoints.hub import hub_options
from hf_posenc.checkpoints.peft import OFFLOADED, adapter_staged
from hf_posenc.checkpoints.peft_methods import FOLDER_ARGUMENTS, check_methods
from hf_posenc.core.files.json_file import read_object
from hf_posenc.core.tested_versions import beyond_tested
from hf_posenc.errors import ModelNotFound, NotExpressible, TrainingImpossible
from hf_posenc.forward.host_calls import cache_name
from hf_posenc.patches.shared.position_table import check_adapted_tables
from hf_posenc.patching.config_guard import GUARD_KEY
from hf_posenc.patching.float32 import keep_in_float32, restore_dtype
from hf_posenc.patching.offloading import offloads_of
from hf_posenc.patching.patch import rollback_on_error
from hf_posenc.patching.peft_sidecar import (
    PEFT_CONFIG,
    SIDECAR,
    position_parameters,
    unguard_adapter_config,
    write_adapter_card,
    write_sidecar_on_save,
)
from hf_posenc.patching.state import is_patched, scheme_holder

Hook = Callable[..., Any]
CONVERTED = "path_initial_model_for_weight_conversion"  # of PEFT's ``save_pretrained``
NAME = "past_key_values"  # what PEFT calls the KV cache, which is ``cache`` from transformers 5.24 on


def refusing(original: Hook, *args: Any, **kwargs: Any) -> Any:
    """Any of them, where one lacks: a patched model is refused, since what is hooked would do half of it."""
    models = [one for one in (*args, *kwargs.values()) if isinstance(one, nn.Module) and vars(one).get("_modules")]
    if any(is_patched(one) for one in models):
        check_methods()
    return original(*args, **kwargs)


def injecting(original: Hook, model: Any, *args: Any, **kwargs: Any) -> Any:
    """``PeftModel(…)``, ``add_adapter``: the learned positions of the base train with what PEFT has added."""
    given = inspect.signature(original).bind(model, *args, **kwargs).arguments
    base = given.get("model", model)  # of a constructor, an argument
    if not isinstance(base, nn.Module) or not base._modules or not is_patched(base):
        return original(model, *args, **kwargs)
    beyond_tested("peft")
    with rollback_on_error(base):
        result = original(model, *args, **kwargs)
        check_adapted_tables(base)
        if offloads_of(base) and any(weight.is_meta and weight.requires_grad for weight in base.parameters()):
            raise TrainingImpossible(OFFLOADED.format(kind=type(base).__name__))
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
    if adapter is None:
        return original(model, *args, **kwargs)
    beyond_tested("peft")
    parameters, name = adapter.position_parameters(), options.get("adapter_name") or "default"
    loaded = getattr(model, "peft_config", {})
    match_base(model, adapter, patch=auto_enabled() and not loaded and not is_patched(model))
    if loaded and name not in loaded:
        check_other_adapters(model, name, adapter)
    from peft import PeftModel

    weights = adapter.weights()
    result = original(model, *args, **kwargs)
    if isinstance(model, PeftModel):
        check_complete(model, adapter, weights, name)
    join_training(model, float32=options.get("autocast_adapter_dtype", True))
    load_position_parameters(model, adapter, parameters)
    return result


def saving(original: Hook, model: Any, *args: Any, **kwargs: Any) -> Any:
    """``save_pretrained``: the scheme of the base is written beside the adapter, and all files replace the old ones.

    What goes to the Hub, or is written by one of several processes, is not staged.
    """
    call = inspect.signature(original).bind(model, *args, **kwargs)
    given, options = call.arguments, {**call.arguments, **call.arguments.get("kwargs", {})}
    if is_patched(model):
        if options.get(CONVERTED):
            raise NotExpressible(
                "PEFT would load the initial weights of this adapter, which were trained with other positions. Save "
                f"it without {CONVERTED}."
            )
        write_sidecar_on_save(scheme_holder(model), model.peft_config)
    elif not Path(given["save_directory"], SIDECAR).exists():  # of an earlier adapter, which must not stay
        return original(model, *args, **kwargs)
    if options.get("push_to_hub") or not options.get("is_main_process", True):
        return original(model, *args, **kwargs)
    with adapter_staged(model, given["save_directory"]) as given["save_directory"]:
        return original(*call.args, **call.kwargs)


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
    """Train the learned positions of a patched base with its adapters, and save them wherever those are saved."""
    if not is_patched(model):
        return
    training = any(not config.inference_mode for config in model.peft_config.values())
    for parameter in position_parameters(model).values():
        parameter.requires_grad_(training)
    if float32:
        keep_in_float32(model)
    write_sidecar_on_save(scheme_holder(model), model.peft_config)


def scheme_adapter(name: str | os.PathLike[str], hub: Mapping[str, Any]) -> AdapterFolder | None:
    """The adapter of that name if it was trained under a scheme; None for any other, whose faults PEFT reports."""
    options = {key: value for key, value in hub_options(hub).items() if value}
    try:
        folder = local_folder(str(name), options, ("*.json",))  # weights of a foreign repository are PEFT's to fetch
        guarded = GUARD_KEY in read_object(folder / PEFT_CONFIG)
    except (OSError, ValueError, ModelNotFound):
        return None
    return AdapterFolder.open(name, **options) if guarded or (folder / SIDECAR).exists() else None


def preparing(original: Hook, model: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """``prepare_inputs_for_generation``: the inputs of a step, whose KV cache PEFT finds under the name it knows."""
    base = model.get_base_model()
    name = cache_name(type(base))
    if name in (None, NAME) or not model.active_peft_config.is_prompt_learning or not is_patched(base):
        return original(model, *args, **kwargs)
    prepare = model.base_model_prepare_inputs_for_generation

    def renamed(*args: Any, **kwargs: Any) -> dict[str, Any]:
        return {NAME if key == name else key: value for key, value in prepare(*args, **kwargs).items()}

    model.base_model_prepare_inputs_for_generation = renamed
    try:
        inputs = original(model, *args, **kwargs)
    finally:
        model.base_model_prepare_inputs_for_generation = prepare
    return {name if key == NAME else key: value for key, value in inputs.items()}

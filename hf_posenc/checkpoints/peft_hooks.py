"""Hooks in PEFT: adapters on a patched base train, save and load its learned positions, whichever program calls PEFT.

`hf_posenc.checkpoints.peft_methods` puts them in the place of PEFT's methods. For a model without a scheme, or a folder
without a sidecar, only PEFT's own methods run.

inject   train learned positions with the adapter, in float32, and make its configuration write the sidecar; refuse to
         adapt offloaded weights, or a position table that the scheme does not read row by row
load     check that adapter and base have the same scheme and that the file is complete; copy the positions of the
         sidecar into the model
save     write the sidecar, and a model card that says what the adapter needs; refuse PEFT's conversion to LoRA, because
         it loads the adapter's initial weights, which were saved with other positions
prepare  give PEFT the KV cache under the name it knows, so that it puts its prompt before a generated text only once
merge    convert parameters that were trained in float32 to the dtype of the base
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from hf_posenc.checkpoints.adapter_folder import AdapterFolder, local_folder
from hf_posenc.checkpoints.auto import auto_enabled
from hf_posenc.checkpoints.hub import hub_options
from hf_posenc.checkpoints.peft import (
    OFFLOADED,
    check_complete,
    check_other_adapters,
    load_position_parameters,
    match_base,
)
from hf_posenc.checkpoints.peft_methods import FOLDER_ARGUMENTS, check_methods
from hf_posenc.core.files.json_file import read_object
from hf_posenc.core.files.staged import staged
from hf_posenc.core.tested_versions import beyond_tested
from hf_posenc.errors import ModelNotFound, NotExpressible, TrainingImpossible
from hf_posenc.forward.host_calls import cache_name
from hf_posenc.patches.shared.position_table import check_adapted_tables
from hf_posenc.patching.config_guard import GUARD_KEY
from hf_posenc.patching.float32 import keep_in_float32, restore_dtype
from hf_posenc.patching.offloading import offloads_of
from hf_posenc.patching.patch import rollback_on_error
from hf_posenc.patching.peft_sidecar import (
    PARAMETERS,
    PEFT_CONFIG,
    SIDECAR,
    position_parameters,
    unguard_adapter_config,
    write_adapter_card,
    write_sidecar_on_save,
)
from hf_posenc.patching.state import is_patched, scheme_holder
from hf_posenc.patching.text_limits import raise_limits_in

Hook = Callable[..., Any]
CONVERTED = "path_initial_model_for_weight_conversion"  # argument of PEFT's ``save_pretrained``
NAME = "past_key_values"  # PEFT's name of the KV cache, which transformers calls ``cache`` since 5.24


def refusing(original: Hook, *args: Any, **kwargs: Any) -> Any:
    """Every hooked method if PEFT lacks one of them: refuse patched models, as the other hooks alone do not suffice."""
    values = [value for value in (*args, *kwargs.values()) if isinstance(value, nn.Module)]
    if any(is_patched(model) for model in values if vars(model).get("_modules")):
        check_methods()
    return original(*args, **kwargs)


def injecting(original: Hook, model: Any, *args: Any, **kwargs: Any) -> Any:
    """``PeftModel(…)`` and ``add_adapter``: train the learned positions of the base together with the adapter."""
    arguments = inspect.signature(original).bind(model, *args, **kwargs).arguments
    base = arguments.get("model", model)  # a constructor gets the base as an argument
    if not isinstance(base, nn.Module) or not base._modules or not is_patched(base):
        return original(model, *args, **kwargs)
    beyond_tested("peft")
    with rollback_on_error(base):
        result = original(model, *args, **kwargs)
        check_adapted_tables(base)
        if offloads_of(base) and any(weight.is_meta and weight.requires_grad for weight in base.parameters()):
            raise TrainingImpossible(OFFLOADED.format(kind=type(base).__name__))
    join_training(model, float32=arguments.get("autocast_adapter_dtype", True))
    return result


def loading_on_base(original: Hook, cls: type, model: nn.Module, model_id: Any, *args: Any, **kwargs: Any) -> Any:
    """``PeftModel.from_pretrained``: refuse a base with another scheme before PEFT changes it."""
    adapter = scheme_adapter(model_id, kwargs)
    if adapter is None:
        return original(cls, model, model_id, *args, **kwargs)
    beyond_tested("peft")
    with rollback_on_error(model):
        match_base(model, adapter, patch=auto_enabled() and not is_patched(model))
        return original(cls, model, model_id, *args, **kwargs)


def loading_into(original: Hook, model: Any, *args: Any, **kwargs: Any) -> Any:
    """``load_adapter``, also called by a resumed `Trainer`: check scheme and weights, load the sidecar's positions."""
    arguments = inspect.signature(original).bind(model, *args, **kwargs).arguments
    options = {**arguments, **arguments.get("kwargs", {}), **arguments.get("adapter_kwargs", {})}
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
    """``save_pretrained``: write the scheme of the base beside the adapter, and replace all old files.

    Files are not staged if they are pushed to the Hub, or if this is not the main process.
    """
    call = inspect.signature(original).bind(model, *args, **kwargs)
    arguments, options = call.arguments, {**call.arguments, **call.arguments.get("kwargs", {})}
    if is_patched(model):
        if options.get(CONVERTED):
            raise NotExpressible(
                "PEFT would load the initial weights of this adapter, which were trained with other positions. Save "
                f"it without {CONVERTED}."
            )
        write_sidecar_on_save(scheme_holder(model), model.peft_config)
    elif not Path(arguments["save_directory"], SIDECAR).exists():  # else staging deletes an earlier one's
        return original(model, *args, **kwargs)
    if options.get("push_to_hub") or not options.get("is_main_process", True):
        return original(model, *args, **kwargs)
    folder = Path(arguments["save_directory"])
    with staged(folder, companions=(SIDECAR, PARAMETERS)) as staging:
        arguments["save_directory"] = str(staging)
        result = original(*call.args, **call.kwargs)
        raise_limits_in(folder, model, into=staging)
    return result


def describing(original: Hook, model: Any, output_dir: str) -> Any:
    """``create_or_update_model_card``: for a patched base, write a card that says what the adapter needs."""
    return write_adapter_card(model, Path(output_dir)) if is_patched(model) else original(model, output_dir)


def unguarding(original: Hook, cls: type, path_json_file: str, **kwargs: Any) -> dict[str, Any]:
    """``PeftConfig.from_json_file``: remove the config guard. The hooks that load weights check the scheme."""
    return unguard_adapter_config(original(cls, path_json_file, **kwargs), str(path_json_file))


def merging(original: Hook, tuner: Any, *args: Any, **kwargs: Any) -> Any:
    """``merge_and_unload`` and ``unload``: convert the layers that were kept in float32 back to the base's dtype."""
    base = original(tuner, *args, **kwargs)
    restore_dtype(base.modules())
    if is_patched(base):
        base.__dict__.pop("peft_config", None)  # PEFT before 0.19 does not remove it
    return base


def join_training(model: Any, *, float32: bool) -> None:
    """Train and save the learned positions of a patched base together with its adapters."""
    if not is_patched(model):
        return
    training = any(not config.inference_mode for config in model.peft_config.values())
    for parameter in position_parameters(model).values():
        parameter.requires_grad_(training)
    if float32:
        keep_in_float32(model)
    write_sidecar_on_save(scheme_holder(model), model.peft_config)


def scheme_adapter(name: str | os.PathLike[str], hub: Mapping[str, Any]) -> AdapterFolder | None:
    """The adapter of that name if it was trained under a scheme, else None. PEFT reports errors of other adapters."""
    options = {key: value for key, value in hub_options(hub).items() if value}
    try:
        folder = local_folder(str(name), options, ("*.json",))  # PEFT itself downloads the weights of other adapters
        guarded = GUARD_KEY in read_object(folder / PEFT_CONFIG)
    except (OSError, ValueError, ModelNotFound):
        return None
    return AdapterFolder.open(name, **options) if guarded or (folder / SIDECAR).exists() else None


def preparing(original: Hook, model: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """``prepare_inputs_for_generation``: give PEFT the KV cache of a step under the name that PEFT knows."""
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

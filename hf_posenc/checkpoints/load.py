"""Load checkpoints that carry a scheme, exactly.

`save_pretrained` of a patched model writes the scheme into ``config.json`` (see
`hf_posenc.patching.stored.scheme_block`) and its learned parameters among the weights. Plain transformers would ignore
both, so the model is built here as it was saved: on the host's own length, patched inside its constructor, so that
transformers' loader finds a place for every parameter.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import transformers
from transformers import CONFIG_MAPPING, PreTrainedModel

from hf_posenc.checkpoints.auto import disable_auto, enable_auto
from hf_posenc.checkpoints.config import config_of
from hf_posenc.checkpoints.peft import load_peft_adapter
from hf_posenc.checkpoints.restore import load_weights
from hf_posenc.checkpoints.validate import check_folder, check_layer_count
from hf_posenc.core.files.hf_errors import explained_errors
from hf_posenc.core.files.paths import checked_name
from hf_posenc.errors import CheckpointMismatch, NotPatched
from hf_posenc.patching.patch import patch_model
from hf_posenc.patching.preconditions.host_config import check_positions
from hf_posenc.patching.preconditions.weights import check_finite
from hf_posenc.patching.stored.peft_sidecar import base_of_adapter, read_sidecar
from hf_posenc.patching.stored.scheme_block import SchemeConfig, option_names
from hf_posenc.schemes.spec import SchemeSpec

if TYPE_CHECKING:
    from torch import nn

__all__ = ["disable_auto", "enable_auto", "from_pretrained"]


def from_pretrained(
    name_or_path: str | os.PathLike[str],
    *,
    model_class: Any = None,
    scheme: SchemeSpec | None = None,
    factor: float | None = None,
    target_length: int | None = None,
    trained_length: int | None = None,
    layers: Mapping[int | str, SchemeSpec] | None = None,
    peft_adapter: str | os.PathLike[str] | None = None,
    **hf_kwargs: Any,
) -> nn.Module:
    """Load a model with the scheme its checkpoint carries, or with the one asked for.

    Args:
        name_or_path: a folder or a Hub name; of a model, or of a PEFT adapter whose base is then loaded.
        model_class: a model class or an Auto class; by default the checkpoint's own architecture.
        scheme, factor, target_length, trained_length, layers: as `patch_model` takes them. On a checkpoint that carries
            a scheme they must agree with it.
        peft_adapter: a PEFT adapter to load on top; the base is patched as the adapter's sidecar says.
        **hf_kwargs: options of the scheme asked for; everything else goes to transformers as it is.

    Returns:
        The model, in evaluation mode; a `PeftModel` where a PEFT adapter was loaded.

    Raises:
        CheckpointMismatch: the scheme block cannot be read, or disagrees with what was asked for; or pickled weights
            were asked for.
        PeftAdapterMismatch: the PEFT adapter belongs to another scheme.
        ModelNotFound: there is no such model, or none that can be had now.
        HostConfigInvalid: its configuration says something of positions that cannot be.
        UnknownOption: a keyword that neither the scheme nor transformers takes.
        WrongKind: the name is no name.
        NotPatched: lengths or layers were given, and there is no scheme they could belong to.
    """
    name_or_path = checked_name(name_or_path)
    peft_adapter = None if peft_adapter is None else checked_name(peft_adapter, "A PEFT adapter")
    if peft_adapter is None and (base := base_of_adapter(name_or_path)) is not None:
        name_or_path, peft_adapter = base, name_or_path
    options = {name: hf_kwargs.pop(name) for name in option_names(scheme) if name in hf_kwargs}
    lengths: dict[str, Any] = {"factor": factor, "target_length": target_length, "trained_length": trained_length}
    check_folder(name_or_path)
    asked = {*option_names(scheme), *lengths, "layers", "dtype", "device_map", "revision"}
    with explained_errors(name_or_path, asked):
        config = config_of(name_or_path, hf_kwargs)
        check_positions(config, name_or_path)
        if not {"config", "subfolder"} & hf_kwargs.keys():  # else weights and configuration are not those of the folder
            check_layer_count(config, name_or_path)
    block = SchemeConfig.of_config(config, name_or_path)
    adapted = None if peft_adapter is None else read_sidecar(peft_adapter)
    for stored, where in ((block, name_or_path), (adapted, peft_adapter)):
        clash = (
            ""
            if stored is None
            else stored.contradiction(scheme=scheme, options=options, layers=layers, lengths=lengths)
        )
        if clash:
            raise CheckpointMismatch(
                f"{where} carries scheme {stored}, but {clash}. Leave that out; unpatch_model removes the scheme."
            )
    carried = block or adapted
    if carried is None and scheme is None and (layers or any(value is not None for value in lengths.values())):
        raise NotPatched(
            "Lengths or layers were given, but neither the call nor the checkpoint has a scheme. Pass scheme=."
        )
    with explained_errors(name_or_path, asked):
        chosen = model_class_of(config, model_class, name_or_path)
        model, info = load_weights(chosen, block, name_or_path, **require_safetensors(hf_kwargs))
    check_no_missing_weights(model, info, name_or_path)
    check_finite(model)
    if peft_adapter is not None:
        model = load_peft_adapter(model, peft_adapter, patch="apply" if block is None else "refuse")
    if carried is None and scheme is not None:
        patch_model(model, scheme, layers=layers, **lengths, **options)
    return (model, info) if hf_kwargs.get("output_loading_info") else model  # type: ignore[return-value]


def model_class_of(config: Mapping[str, Any], model_class: Any, where: str) -> type[PreTrainedModel]:
    """The class to load: the one given, the one an Auto class would choose, or the checkpoint's own.

    Raises:
        CheckpointMismatch: the configuration names no class of transformers, or none the Auto class knows.
    """
    listed = config.get("architectures")
    architectures = [name for name in listed if isinstance(name, str)] if isinstance(listed, list) else []
    candidates: list[Any]
    if model_class is None:
        candidates = [getattr(transformers, str(name), None) for name in architectures]
    elif hasattr(model_class, "_model_mapping"):
        config_class = CONFIG_MAPPING[config["model_type"]] if config.get("model_type") in CONFIG_MAPPING else None
        known = model_class._model_mapping.get(config_class, ())
        candidates = list(known) if isinstance(known, (list, tuple)) else [known]
        candidates.sort(key=lambda cls: cls.__name__ not in architectures)
    else:
        candidates = [model_class]
    for cls in candidates:
        if isinstance(cls, type) and issubclass(cls, PreTrainedModel):
            return cls
    raise CheckpointMismatch(
        f"{where} has the architectures {architectures}, and none of them is a class that can be loaded. "
        "Pass model_class=, such as AutoModelForCausalLM."
    )


def check_no_missing_weights(model: PreTrainedModel, info: Mapping[str, Any], where: str) -> None:
    """Refuse a checkpoint that lacks weights of the base, heads and poolers aside: transformers makes them up.

    Raises:
        CheckpointMismatch: one is missing, or has another shape.
    """
    prefix = f"{model.base_model_prefix}." if hasattr(model, model.base_model_prefix) else ""
    lost = sorted(
        name
        for name in info.get("missing_keys", ())
        if name.startswith(prefix) and not {"posenc", "pooler"} & set(name.split("."))
    )
    odd = sorted(str(one[0]) for one in info.get("mismatched_keys", ()))
    if lost or odd:
        what = f"lacks the weight {lost[0]!r}" if lost else f"has the weight {odd[0]!r} in another shape"
        raise CheckpointMismatch(
            f"The checkpoint {where} {what}, which transformers would make up at random. Copy or save it again."
        )


def require_safetensors(hf_kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The caller's keywords, with safetensors required.

    Raises:
        CheckpointMismatch: pickled weights were asked for.
    """
    if hf_kwargs.get("use_safetensors", True) is False:
        raise CheckpointMismatch(
            "use_safetensors=False asks for pickled weights, which can run code when they are read. "
            "Load them with transformers, save_pretrained, and pass that folder."
        )
    return {**hf_kwargs, "use_safetensors": True}

"""PEFT adapters that know the scheme they were trained under, and refuse to work on another.

A saved adapter carries the scheme (see `hf_posenc.patching.stored.peft_sidecar`) whoever saves it: PEFT, transformers
or `Trainer`, in whatever order the model was patched and adapted. The one exception are prompts and prefixes, which
leave no trace in the model they stand before: wrap it with `get_peft_model` of this module, or save with
`save_peft_adapter`.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor, nn

from hf_posenc.checkpoints.restore import apply_scheme
from hf_posenc.core.files.atomic import write_json
from hf_posenc.core.files.hf_errors import first_line
from hf_posenc.core.files.paths import folder_to_write
from hf_posenc.core.files.staged import staged
from hf_posenc.errors import (
    PeftAdapterMismatch,
    PosEncError,
    TrainingImpossible,
    UnsupportedModel,
    WrongKind,
    nearest,
    shown,
)
from hf_posenc.patches.offloading import offloads_of
from hf_posenc.patching.patch import unpatch_model
from hf_posenc.patching.preconditions.memory import check_rank_memory
from hf_posenc.patching.rollback import rollback_on_error
from hf_posenc.patching.state import base_model_of, is_patched
from hf_posenc.patching.stored.peft_sidecar import (
    PARAMETERS,
    PEFT_CONFIG,
    SIDECAR,
    load_position_parameters,
    local_folder,
    position_parameters,
    read_json,
    read_position_parameters,
    read_sidecar,
    unguard_adapter_config,
    write_sidecar_on_save,
)
from hf_posenc.patching.stored.scheme_block import SchemeConfig

if TYPE_CHECKING:
    from peft import PeftConfig, PeftModel

PEFT_WEIGHTS = "adapter_model.safetensors"
OFFLOADED = (
    "Weights of this {kind} are offloaded, and PEFT leaves an adapter beside them without values. "
    "Put the adapter on first, and offload the model afterwards."
)


def get_peft_model(model: nn.Module, config: PeftConfig, **kwargs: Any) -> PeftModel:
    """``peft.get_peft_model`` whose ``save_pretrained`` writes the scheme too; takes what that takes.

    Raises:
        UnsupportedModel: the model is none.
        WrongKind: the configuration is none of PEFT's.
        TrainingImpossible: it does not fit the model; or weights are offloaded where an adapter would be.
    """
    import peft

    if not isinstance(model, nn.Module):
        raise UnsupportedModel(f"A live model is needed, got {shown(model)}. Load it with hf_posenc.from_pretrained.")
    if not isinstance(config, peft.PeftConfig):
        raise WrongKind(f"PEFT needs a configuration, got {shown(config)}. Pass for example peft.LoraConfig(r=16).")
    try:
        with rollback_on_error(model), without_peft_noise():
            offloaded = bool(offloads_of(model))
            wrapped = peft.get_peft_model(model, config, **kwargs)  # type: ignore[arg-type]
            if offloaded and any(weight.is_meta and weight.requires_grad for weight in wrapped.parameters()):
                raise TrainingImpossible(OFFLOADED.format(kind=type(model).__name__))
            return write_scheme_on_save(wrapped)  # type: ignore[arg-type]
    except PosEncError:
        raise
    except ValueError as error:
        first = str(error).partition(". ")[0].partition("\n")[0].rstrip(".")
        raise TrainingImpossible(f"PEFT cannot wrap this model: {first}. Change its configuration.") from error


@contextmanager
def without_peft_noise() -> Iterator[None]:
    """PEFT reads an attribute that transformers has renamed; the warning is about neither the user's code nor ours."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*is_gradient_checkpointing", FutureWarning)
        yield


def write_scheme_on_save(model: PeftModel) -> PeftModel:
    """Make this PEFT model's own ``save_pretrained`` (which `Trainer` calls) write the scheme beside the adapter."""
    model.save_pretrained = partial(save_peft_adapter, model)  # type: ignore[method-assign]
    return model


def save_peft_adapter(model: PeftModel, save_directory: str | os.PathLike[str], **kwargs: Any) -> None:
    """Save a PEFT adapter with the scheme of its base and the position parameters PEFT would leave out: whole or not.

    Args:
        model: around a patched base, or a plain one; patched before or after PEFT wrapped it.
        save_directory: the folder.
        **kwargs: of PEFT's ``save_pretrained``.
    """
    patched = is_patched(model)
    if not hasattr(model, "peft_config"):
        raise WrongKind(f"A PEFT model is needed, got a {type(model).__name__}. Wrap it with get_peft_model first.")
    save_directory = folder_to_write(save_directory)
    write_sidecar_on_save(base_model_of(model)[0] if patched else model, model.peft_config)
    if kwargs.get("push_to_hub") or not kwargs.get("is_main_process", True):
        return type(model).save_pretrained(model, str(save_directory), **kwargs)
    with staged(save_directory, companions=(SIDECAR, PARAMETERS)) as beside:
        type(model).save_pretrained(model, str(beside), **kwargs)


def load_peft_adapter(
    model: nn.Module,
    folder: str | os.PathLike[str],
    *,
    patch: Literal["refuse", "apply"] = "refuse",
    adapter_name: str = "default",
    **kwargs: Any,
) -> PeftModel:
    """Put a saved PEFT adapter on the base it was trained on.

    Args:
        model: the base, patched with the adapter's scheme; or a PEFT model around it, which gets one adapter more.
        folder: of the adapter, or its Hub name.
        patch: what to do with a base under another scheme or none: refuse it, or patch it as the adapter says.
        adapter_name: what the adapter is called in the model; make it the active one with ``set_adapter``.
        **kwargs: of ``PeftModel.from_pretrained``, such as ``is_trainable``.

    Returns:
        The PEFT model; its ``save_pretrained`` writes the scheme again.

    Raises:
        NoMemory: its rank is larger than any memory.
        UnsupportedModel: weights are offloaded by something else than a device map, which PEFT would follow.
        PeftAdapterMismatch: base and adapter have different schemes or lengths, the model has an adapter of that name,
            or other learned positions that all its adapters share; or the folder is damaged, incomplete or not safe to
            read.
    """
    from peft import PeftModel

    if not isinstance(model, nn.Module):
        raise UnsupportedModel(f"A live model is needed, got {shown(model)}. Load it with hf_posenc.from_pretrained.")
    if patch not in ("refuse", "apply"):
        raise WrongKind(f"patch says what to do with another base, got {shown(patch)}. Pass 'refuse' or 'apply'.")
    if offloads_of(model) and not any(hasattr(module, "hf_device_map") for module in model.modules()):
        raise UnsupportedModel(OFFLOADED.format(kind=type(model).__name__))
    folder = local_folder(folder)
    with explained_peft_errors(folder):
        config = _peft_config(folder)
        weights, wanted, parameters = _weights(folder), read_sidecar(folder), read_position_parameters(folder)
        if parameters and getattr(config, "modules_to_save", None):  # named before there was one: PEFT saved none
            config.modules_to_save = [name for name in config.modules_to_save if name != "posenc"] or None
        _check_rank(config, weights)
    if isinstance(model, PeftModel):
        _check_other_adapters(model, adapter_name, parameters, folder)
    with explained_peft_errors(folder), rollback_on_error(model):
        _match_base(model, wanted, folder, apply=patch == "apply" and not isinstance(model, PeftModel))
        with without_peft_noise():
            if isinstance(model, PeftModel):
                model.add_adapter(adapter_name, config)
                model.load_adapter(str(folder), adapter_name, **kwargs)
                adapted = model
            else:
                adapted = PeftModel.from_pretrained(model, str(folder), adapter_name, config=config, **kwargs)  # type: ignore[arg-type]
        _check_complete(adapted, weights, folder, adapter_name)
        if wanted is not None:
            load_position_parameters(adapted, parameters, folder)
    return write_scheme_on_save(adapted)


@contextmanager
def explained_peft_errors(folder: Path) -> Iterator[None]:
    """Say errors of PEFT and safetensors about an adapter in our words.

    Raises:
        PeftAdapterMismatch: the adapter is damaged, or does not fit its base.
    """
    try:
        yield
    except PosEncError:
        raise
    except Exception as error:  # PEFT checks little, and fails with whatever it meets
        raise PeftAdapterMismatch(
            f"The PEFT adapter in {folder} does not fit this base: {first_line(error)}. Load the base it was trained "
            "on, or save the adapter again."
        ) from error


def _match_base(model: nn.Module, wanted: SchemeConfig | None, folder: Path, *, apply: bool) -> None:
    """Make sure that ``model`` carries ``wanted``, by patching it if that is allowed."""
    carried = SchemeConfig.of_model(model)
    if carried == wanted:
        return
    if wanted is None:
        raise PeftAdapterMismatch(
            f"The PEFT adapter in {folder} was trained without a scheme, but this base carries {carried}. "
            "Call unpatch_model(base) first; patch_model afterwards, if you mean to."
        )
    if not apply:
        raise PeftAdapterMismatch(
            f"The PEFT adapter in {folder} was trained under scheme {wanted}, but this base carries "
            f"{carried or 'none'}. "
            'Load a base that matches, or pass patch="apply" to patch this one.'
        )
    if carried is not None:
        unpatch_model(model)
    length = base_model_of(model)[0].config.max_position_embeddings
    if length != wanted.host_length:
        raise PeftAdapterMismatch(
            f"The PEFT adapter in {folder} was trained on a base for {wanted.host_length} positions, and this one has "
            f"{length}. Load the base it was trained on."
        )
    apply_scheme(wanted, model)


def _check_other_adapters(model: PeftModel, name: str, parameters: Mapping[str, Tensor], folder: Path) -> None:
    """Refuse a second adapter under one name, and one that was trained with other shared position parameters."""
    if name in model.peft_config:
        raise PeftAdapterMismatch(
            f"This model carries a PEFT adapter called {name!r} already. Pass another adapter_name, or the base: "
            "model.unload()."
        )
    live = position_parameters(model)
    for key, value in parameters.items():
        if key in live and not torch.equal(live[key].detach().cpu(), value):
            raise PeftAdapterMismatch(
                f"The PEFT adapter in {folder} was trained with another {key!r} than this model's adapters share. "
                'Load it on a base of its own, or train such adapters with modules_to_save=["posenc"].'
            )


def _peft_config(folder: Path) -> PeftConfig:
    """The adapter's configuration, past the guard; refused where PEFT would import a module for it."""
    from peft import PeftConfig

    config = unguard_adapter_config(read_json(folder / PEFT_CONFIG), str(folder / PEFT_CONFIG))
    mapping = config.get("auto_mapping") or {}
    library = mapping.get("parent_library", "transformers") if isinstance(mapping, Mapping) else mapping
    if str(library).partition(".")[0] != "transformers" or config.get("megatron_core") not in (None, "megatron.core"):
        raise PeftAdapterMismatch(
            f"{folder / PEFT_CONFIG} names a module to import. Remove that, or load it with PEFT itself."
        )
    config = drop_unset_unknown_keys(config, str(folder / PEFT_CONFIG))
    with TemporaryDirectory() as plain:  # PEFT reads configurations from files only
        write_json(Path(plain) / PEFT_CONFIG, config)
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("error", "Unexpected keyword", UserWarning)  # unknown keys
                return PeftConfig.from_pretrained(plain)
        except Exception as error:  # PEFT checks little, and fails with whatever it meets
            raise PeftAdapterMismatch(
                f"{folder / PEFT_CONFIG} cannot be read: {type(error).__name__} {shown(str(error))}. "
                "Copy or save the adapter again."
            ) from error


def drop_unset_unknown_keys(config: Mapping[str, Any], where: str) -> dict[str, Any]:
    """A configuration without keys that this PEFT does not know and that ask for nothing.

    PEFT adds options from release to release, each off by default, and writes all of them.

    Raises:
        PeftAdapterMismatch: an unknown key asks for something, or the kind of adapter is unknown.
    """
    from peft import PEFT_TYPE_TO_CONFIG_MAPPING, PeftConfig

    kind, kinds = config.get("peft_type"), PEFT_TYPE_TO_CONFIG_MAPPING
    newer = newer_release(config.get("peft_version"))
    advice = f"It was written by peft {newer}: pip install -U peft." if newer else "Correct it, or save it again."
    if not isinstance(kind, str) or kind not in kinds:
        names = [str(one.value) for one in kinds]
        close = nearest(kind, names)  # type: ignore[arg-type]
        raise PeftAdapterMismatch(f"{where} has the kind {shown(kind)}, which is none of this PEFT's.{close} {advice}")
    known = {field.name for cls in (kinds[kind], PeftConfig) for field in fields(cls)}
    for name in config.keys() - known:
        if config[name] not in (None, False, "", [], {}):
            raise PeftAdapterMismatch(
                f"{where} has the key {shown(name)}, which this PEFT does not know.{nearest(name, known)} {advice}"
            )
    return {name: value for name, value in config.items() if name in known}


def newer_release(written: Any) -> str | None:
    """The release of PEFT that wrote a configuration, if it is newer than the one installed."""
    import peft
    from packaging.version import InvalidVersion, Version

    try:
        release = Version(written.partition("@")[0])
    except (AttributeError, InvalidVersion):
        return None
    return str(release) if release > Version(peft.__version__) else None


def _weights(folder: Path) -> dict[str, Tensor]:
    file = folder / PEFT_WEIGHTS
    if not file.is_file():
        raise PeftAdapterMismatch(f"{folder} has no {PEFT_WEIGHTS}. Save the adapter again, as safetensors.")
    try:
        weights = load(file.read_bytes())
    except SafetensorError as error:
        raise PeftAdapterMismatch(f"{file} cannot be read: {error}. Copy or save the adapter again.") from error
    for name, value in weights.items():
        if not value.isfinite().all():
            raise PeftAdapterMismatch(f"{file} has numbers that are not finite in {name!r}. Train the adapter again.")
    return weights


def _check_rank(config: PeftConfig, weights: Mapping[str, Tensor]) -> None:
    """Refuse a rank that PEFT would allocate memory for before it sees that the file has another."""
    pattern = getattr(config, "rank_pattern", None)
    asked = [getattr(config, name, None) for name in ("r", "num_virtual_tokens", "encoder_hidden_size")]
    asked += pattern.values() if isinstance(pattern, Mapping) else ()
    rank = max((value for value in asked if isinstance(value, int)), default=0)
    check_rank_memory(rank, sum(max(value.shape) for value in weights.values() if value.ndim == 2))


def _check_complete(model: PeftModel, weights: Mapping[str, Tensor], folder: Path, name: str) -> None:
    """PEFT makes up what a file lacks and only warns."""
    from peft import get_peft_model_state_dict

    wanted = get_peft_model_state_dict(model, adapter_name=name, save_embedding_layers=False)
    missing = sorted(wanted.keys() - weights.keys())
    if missing:
        raise PeftAdapterMismatch(f"{folder / PEFT_WEIGHTS} lacks {missing[0]!r}. Copy or save the adapter again.")

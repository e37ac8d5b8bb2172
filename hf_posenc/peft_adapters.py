"""PEFT adapters that know the scheme they were trained under, and refuse to work on another.

A saved adapter carries the scheme (see `hf_posenc.side_car`) when it was saved by `save_peft_adapter`, which is also
what ``save_pretrained`` does on PEFT models made by `get_peft_model` or `load_peft_adapter` of this module.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor, nn

from hf_posenc.block import Block
from hf_posenc.errors import PeftAdapterMismatch
from hf_posenc.patching import host_of, unpatch_model
from hf_posenc.side_car import (
    PEFT_CONFIG,
    load_parameters,
    local_folder,
    read_json,
    saved_parameters,
    side_car_of,
    write_side_car,
)

if TYPE_CHECKING:
    from peft import PeftConfig, PeftModel

PEFT_WEIGHTS = "adapter_model.safetensors"


def get_peft_model(model: nn.Module, config: PeftConfig, **kwargs: Any) -> PeftModel:
    """``peft.get_peft_model`` whose ``save_pretrained`` writes the scheme too; takes what that takes."""
    import peft

    with without_peft_noise():
        return carrying(peft.get_peft_model(model, config, **kwargs))  # type: ignore[arg-type]


@contextmanager
def without_peft_noise() -> Iterator[None]:
    """PEFT reads an attribute that transformers has renamed; the warning is about neither the user's code nor ours."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*is_gradient_checkpointing", FutureWarning)
        yield


def carrying(model: PeftModel) -> PeftModel:
    """Make this PEFT model's own ``save_pretrained`` (which `Trainer` calls) write the scheme beside the adapter."""
    model.save_pretrained = partial(save_peft_adapter, model)  # type: ignore[method-assign]
    return model


def save_peft_adapter(model: PeftModel, save_directory: str | os.PathLike[str], **kwargs: Any) -> None:
    """Save a PEFT adapter with the scheme of its base and the position parameters PEFT would leave out.

    Args:
        model: around a patched base, or a plain one; patched before or after PEFT wrapped it.
        save_directory: the folder.
        **kwargs: of PEFT's ``save_pretrained``.
    """
    folder = Path(save_directory)
    type(model).save_pretrained(model, str(folder), **kwargs)
    if not kwargs.get("is_main_process", True):
        return
    for name in kwargs.get("selected_adapters") or model.peft_config:
        write_side_car(model, folder if name == "default" else folder / name)


def load_peft_adapter(
    model: nn.Module,
    folder: str | os.PathLike[str],
    *,
    patch: Literal["refuse", "apply"] = "refuse",
    **kwargs: Any,
) -> PeftModel:
    """Put a saved PEFT adapter on the base it was trained on.

    Args:
        model: the base, patched with the adapter's scheme.
        folder: of the adapter, or its Hub name.
        patch: what to do with a base under another scheme or none: refuse it, or patch it as the adapter says.
        **kwargs: of ``PeftModel.from_pretrained``, such as ``is_trainable``.

    Returns:
        The PEFT model; its ``save_pretrained`` writes the scheme again.

    Raises:
        PeftAdapterMismatch: base and adapter have different schemes or lengths, the base has an adapter already, or the
            folder is damaged, incomplete or not safe to read.
    """
    from peft import PeftModel

    if isinstance(model, PeftModel):
        raise PeftAdapterMismatch("This model carries a PEFT adapter already. Pass its base: model.unload().")
    folder = local_folder(folder)
    _check_peft_config(folder)
    weights, wanted, parameters = _weights(folder), side_car_of(folder), saved_parameters(folder)
    _fit(model, wanted, folder, apply=patch == "apply")
    with without_peft_noise():
        adapted = PeftModel.from_pretrained(model, str(folder), **kwargs)  # type: ignore[arg-type]
    _check_complete(adapted, weights, folder)
    if wanted is not None:
        load_parameters(adapted, parameters, folder)
    return carrying(adapted)


def _fit(model: nn.Module, wanted: Block | None, folder: Path, *, apply: bool) -> None:
    """Make sure that ``model`` carries ``wanted``, by patching it if that is allowed."""
    carried = Block.of_model(model)
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
    length = host_of(model)[0].config.max_position_embeddings
    if length != wanted.host_length:
        raise PeftAdapterMismatch(
            f"The PEFT adapter in {folder} was trained on a base for {wanted.host_length} positions, and this one has "
            f"{length}. Load the base it was trained on."
        )
    wanted.put_on(model)


def _check_peft_config(folder: Path) -> None:
    """Refuse what PEFT would import a module for, and weights that are pickled."""
    config = read_json(folder / PEFT_CONFIG)
    library = (config.get("auto_mapping") or {}).get("parent_library") or "transformers"
    if str(library).partition(".")[0] != "transformers" or config.get("megatron_core") not in (None, "megatron.core"):
        raise PeftAdapterMismatch(
            f"{folder / PEFT_CONFIG} names a module to import. Remove that, or load it with PEFT itself."
        )


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


def _check_complete(model: PeftModel, weights: Mapping[str, Tensor], folder: Path) -> None:
    """PEFT makes up what a file lacks and only warns."""
    from peft import get_peft_model_state_dict

    missing = sorted(get_peft_model_state_dict(model, save_embedding_layers=False).keys() - weights.keys())
    if missing:
        raise PeftAdapterMismatch(f"{folder / PEFT_WEIGHTS} lacks {missing[0]!r}. Copy or save the adapter again.")

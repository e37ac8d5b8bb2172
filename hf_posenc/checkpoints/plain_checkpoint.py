"""A patched model as a plain checkpoint, where transformers has a RoPE type for the scheme.

transformers then computes the same logits without this package. The rotation is written in the form of transformers 5,
``rope_parameters``, and in that of earlier releases (`hf_posenc.checkpoints.old_rope_keys`).

Two schemes rotate by the sequence length (dynamic NTK, LongRoPE). transformers has them as well, but rotates every
query by the length of the whole sequence and a cached key by the length when it was cached. Up to the trained length
both compute the same (transformers' ``dynamic`` until it has seen a longer sequence: it then keeps those frequencies
for a sequence of exactly the trained length); an export warns.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hf_posenc.checkpoints.old_rope_keys import add_old_form, is_misread_before_5
from hf_posenc.checkpoints.plain_config import explained_refusal, plain_config, section_of
from hf_posenc.checkpoints.readers.compare import readings
from hf_posenc.errors import EngineDiffers, NotExpressible, NotReadBefore5, OnlyWithinTrainedLength, ReadOtherwise
from hf_posenc.patches.shared.rope_parameters import TRAINED_LENGTH, TRAINED_THETA, UNSCALED, by_layer_type, rotations
from hf_posenc.patching.model_card import FRONT_MATTER, PLAIN, SECTION, replace_section
from hf_posenc.patching.offloading import offloaded_values
from hf_posenc.patching.state import base_model_of, describe

ORIGINAL = "original_max_position_embeddings"  # where RoPE types have it
NOT_MULTIPLIED = ("yarn", "longrope", "llama3")  # yarn: the original length is multiplied, which is right
NEVER_MULTIPLIED = "gemma3"  # part of a model type that vLLM excepts


def write_plain(model: Any, staging: Path) -> dict[str, Any]:
    """Write a patched model as a checkpoint that computes the same logits in plain transformers.

    Returns:
        The ``rope_parameters`` in its ``config.json``, and what each engine makes of them.
    """
    found, report = plain_config(model), describe(model)
    with explained_refusal(found.parameters):
        plain = filled(model, type(model), found.config, offloaded_values(model))
    write_checkpoint(plain, model, staging, found.compared_length)
    add_old_form(staging, found.of_base, found.section)
    if found.short:
        warnings.warn(
            f"In texts longer than {report.trained_length} tokens, transformers does not compute scheme "
            f"{report.scheme!r}. Stay within that length there, or use the checkpoint that save_pretrained writes.",
            OnlyWithinTrainedLength,
            stacklevel=3,
        )
    if is_misread_before_5(found.of_base):
        warnings.warn(
            f"transformers before 5 reads this {found.of_base.model_type} without its scaling, and without an "
            "error. Use transformers 5 or later.",
            NotReadBefore5,
            stacklevel=3,
        )
    readers = list(readings(found))
    otherwise = [str(reading) for reading in readers if reading.verdict in ("different", "unable")]
    if otherwise:
        warnings.warn(
            f"Not every engine computes this checkpoint as transformers does. {'; '.join(otherwise)}. Serve it with an "
            "engine that is not in this list.",
            EngineDiffers,
            stacklevel=3,
        )
    length = length_in_vllm(found.of_base, report.target_length)
    if length is not None:
        warnings.warn(length, ReadOtherwise, stacklevel=3)
    return {"rope_parameters": found.parameters, "readers": readers}


def filled(model: Any, make: Callable[[Any], Any], config: Any, weights: Mapping[str, Tensor]) -> Any:
    """The plain model that ``make(config)`` builds, with these weights, but for those it has no place for.

    How it generates is that of the patched ``model``.

    Raises:
        NotExpressible: the class of the installed transformers has weights beside these.
    """
    with torch.device("meta"):
        plain = make(config)
    missing = plain.state_dict().keys() - weights.keys()
    if missing:
        raise NotExpressible(
            f"The {type(plain).__name__} of transformers {version('transformers')} has weights of other names: "
            f"{', '.join(sorted(missing))}. Install a newer transformers, or use the checkpoint of save_pretrained."
        )
    own = {name: weights[name] for name in plain.state_dict()}
    plain.load_state_dict(own, assign=True)
    plain.tie_weights()
    tied = {name: now for name, now in plain.state_dict().items() if now.data_ptr() != own[name].data_ptr()}
    if not all(torch.equal(now.cpu(), own[name].cpu()) for name, now in tied.items()):
        plain.config.tie_word_embeddings = False  # the output layer has other weights than the embeddings
        plain.load_state_dict(own, assign=True)
    plain.generation_config = getattr(model, "generation_config", None)
    return plain


def write_checkpoint(plain: Any, model: Any, staging: Path, length: int) -> None:
    """Write ``plain``, made of a patched ``model``. Its card says that it computes the same up to ``length`` tokens."""
    report = describe(model)
    state_training(plain, model)
    plain.save_pretrained(staging)
    lengths = {"trained_length": report.trained_length, "target_length": length}
    section = SECTION.format(scheme=report.scheme, loading=PLAIN, **lengths)
    replace_section(staging, section, FRONT_MATTER.format(library="transformers"))


def state_training(plain: Any, model: Any) -> None:
    """Say in the configuration of ``plain`` what its weights were trained with, where nothing in it says so.

    What reads a position table counts from its rows all the same: they are the positions up to the target.
    """
    base, own_adapter = base_model_of(model)
    alike, own, lengths = type(plain) is type(model), base.config, [describe(model).trained_length]
    adapter = own_adapter if alike else base_model_of(plain)[1]
    section = section_of(plain.config, own) if alike else None
    config = plain.config if section is None else getattr(plain.config, section)
    if own_adapter.scaled_already(own) is not None:  # schemes on top of a scaling count from what it reaches
        lengths.append(own_adapter.trained_length(own))
    for name in (TRAINED_LENGTH, TRAINED_THETA):
        if hasattr(config, name):
            delattr(config, name)
    rows = adapter.geometry(config, trained_length=1, target_length=1).table
    if rows is not None:
        if rows > min(lengths):
            setattr(config, TRAINED_LENGTH, min(lengths))
        return
    if adapter.trained_length(config) != min(lengths) or not any(ORIGINAL in one for one in rotations(config).values()):
        setattr(config, TRAINED_LENGTH, min(lengths))
    for kind, rotation in rotations(config).items():
        theta = getattr(own, TRAINED_THETA, None) or rotations(own).get(kind, rotation)["rope_theta"]
        if rotation["rope_type"] == UNSCALED and theta != rotation["rope_theta"]:
            setattr(config, TRAINED_THETA, theta)


def length_in_vllm(config: Any, target_length: int) -> str | None:
    """A sentence on the length of texts, where vLLM would accept others than the patch is for.

    vLLM takes it from ``max_position_embeddings``, times the factor of RoPE types but those in `NOT_MULTIPLIED`;
    transformers bounds generation by the same entry, without the factor. For ``linear`` no number suits both.

    Args:
        config: of the plain model, or the part of it that configures the patched one.
        target_length: of the patch, in tokens.
    """
    sets = by_layer_type(config.rope_parameters).values()
    factor = max((of.get("factor", 1.0) for of in sets if of["rope_type"] not in NOT_MULTIPLIED), default=1.0)
    read = int(config.max_position_embeddings * factor)
    if factor > 1.0 and read > target_length and NEVER_MULTIPLIED not in config.model_type:
        return (
            f"vLLM multiplies max_position_embeddings by the factor of this RoPE type and would accept texts of "
            f"{read:,} tokens. Start it with --max-model-len {target_length}."
        )
    if any(of["rope_type"] == "longrope" for of in sets):
        return (
            f"vLLM accepts texts of the trained length for RoPE type 'longrope'. Start it with --max-model-len "
            f"{target_length}; it then rotates every text by the long list."
        )
    return None

"""Write a patched model as a plain checkpoint, if transformers has a RoPE type for the scheme.

transformers then computes the same logits without this package. The rotation is written as ``rope_parameters``, for
transformers 5, and in the form of earlier releases (`hf_posenc.checkpoints.old_rope_keys`).

Two schemes rotate by the sequence length (dynamic NTK, LongRoPE). transformers' versions rotate every query by the
length of the whole sequence, and a cached key by the length at which it was cached. Up to the trained length, both
versions compute the same, and an export warns. One exception: after transformers' ``dynamic`` has seen a longer
sequence, it keeps those frequencies for a sequence of exactly the trained length.
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

ORIGINAL = "original_max_position_embeddings"  # entry of those RoPE types that need it
NOT_MULTIPLIED = ("yarn", "longrope", "llama3")  # for yarn, vLLM multiplies the original length, which is correct
NEVER_MULTIPLIED = "gemma3"  # part of a model type for which vLLM does not multiply


def write_plain(model: Any, staging: Path) -> dict[str, Any]:
    """Write a patched model as a checkpoint that computes the same logits in plain transformers.

    Returns:
        The ``rope_parameters`` in its ``config.json``, and the comparison of each engine with transformers.
    """
    new, report = plain_config(model), describe(model)
    with explained_refusal(new.parameters):
        plain = with_weights(model, type(model), new.config, offloaded_values(model))
    write_checkpoint(plain, model, staging, new.compared_length)
    add_old_form(staging, new.of_base, new.section)
    if new.short:
        warnings.warn(
            f"In texts longer than {report.trained_length} tokens, transformers does not compute scheme "
            f"{report.scheme!r}. Stay within that length there, or use the checkpoint that save_pretrained writes.",
            OnlyWithinTrainedLength,
            stacklevel=3,
        )
    if is_misread_before_5(new.of_base):
        warnings.warn(
            f"transformers before 5 loads this {new.of_base.model_type} without its scaling, and without an "
            "error. Use transformers 5 or later.",
            NotReadBefore5,
            stacklevel=3,
        )
    readers = list(readings(new))
    differing = [str(reading) for reading in readers if reading.verdict in ("different", "unable")]
    if differing:
        warnings.warn(
            f"Not every engine computes this checkpoint as transformers does. {'; '.join(differing)}. Serve it with an "
            "engine that is not in this list.",
            EngineDiffers,
            stacklevel=3,
        )
    length_warning = length_in_vllm(new.of_base, report.target_length)
    if length_warning is not None:
        warnings.warn(length_warning, ReadOtherwise, stacklevel=3)
    return {"rope_parameters": new.parameters, "readers": readers}


def with_weights(model: Any, make: Callable[[Any], Any], config: Any, weights: Mapping[str, Tensor]) -> Any:
    """Build the plain model ``make(config)`` and load those of ``weights`` that it has.

    It gets the generation configuration of the patched ``model``.

    Raises:
        NotExpressible: the class in the installed transformers has a weight that is not in ``weights``.
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
    tied = {name: live for name, live in plain.state_dict().items() if live.data_ptr() != own[name].data_ptr()}
    if not all(torch.equal(live.cpu(), own[name].cpu()) for name, live in tied.items()):
        plain.config.tie_word_embeddings = False  # the output layer has other weights than the embeddings
        plain.load_state_dict(own, assign=True)
    plain.generation_config = getattr(model, "generation_config", None)
    return plain


def write_checkpoint(plain: Any, model: Any, staging: Path, length: int) -> None:
    """Write ``plain``, made from a patched ``model``, with a card that states ``length`` as its target length."""
    report = describe(model)
    state_training(plain, model)
    plain.save_pretrained(staging)
    lengths = {"trained_length": report.trained_length, "target_length": length}
    section = SECTION.format(scheme=report.scheme, loading=PLAIN, **lengths)
    replace_section(staging, section, FRONT_MATTER.format(library="transformers"))


def state_training(plain: Any, model: Any) -> None:
    """Record the trained length and RoPE base of the weights in the configuration of ``plain``, if it lacks them.

    A scheme that keeps a position table still takes its rows for the trained length: they reach the target length.
    """
    base, own_adapter = base_model_of(model)
    same_class, own, lengths = type(plain) is type(model), base.config, [describe(model).trained_length]
    adapter = own_adapter if same_class else base_model_of(plain)[1]
    section = section_of(plain.config, own) if same_class else None
    config = plain.config if section is None else getattr(plain.config, section)
    if own_adapter.scaled_already(own) is not None:  # the report then has the length that the scaling reaches
        lengths.append(own_adapter.trained_length(own))
    for name in (TRAINED_LENGTH, TRAINED_THETA):
        if hasattr(config, name):
            delattr(config, name)
    rows = adapter.geometry(config, trained_length=1, target_length=1).table
    if rows is not None:
        if rows > min(lengths):
            setattr(config, TRAINED_LENGTH, min(lengths))
        return
    states_length = any(ORIGINAL in rotation for rotation in rotations(config).values())
    if adapter.trained_length(config) != min(lengths) or not states_length:
        setattr(config, TRAINED_LENGTH, min(lengths))
    for kind, rotation in rotations(config).items():
        theta = getattr(own, TRAINED_THETA, None) or rotations(own).get(kind, rotation)["rope_theta"]
        if rotation["rope_type"] == UNSCALED and theta != rotation["rope_theta"]:
            setattr(config, TRAINED_THETA, theta)


def length_in_vllm(config: Any, target_length: int) -> str | None:
    """Warning for checkpoints for which vLLM would accept another text length than the target length; else None.

    vLLM multiplies ``max_position_embeddings`` by the factor, except for RoPE types in `NOT_MULTIPLIED`. transformers
    limits generation by the same entry, without the factor. For ``linear`` no number suits both.

    Args:
        config: configuration of the plain model, or of the part that was patched.
        target_length: target length of the patch, in tokens.
    """
    sets = by_layer_type(config.rope_parameters).values()
    factor = max((rope.get("factor", 1.0) for rope in sets if rope["rope_type"] not in NOT_MULTIPLIED), default=1.0)
    accepted = int(config.max_position_embeddings * factor)
    if factor > 1.0 and accepted > target_length and NEVER_MULTIPLIED not in config.model_type:
        return (
            f"vLLM multiplies max_position_embeddings by the factor of this RoPE type and would accept texts of "
            f"{accepted:,} tokens. Start it with --max-model-len {target_length}."
        )
    if any(rope["rope_type"] == "longrope" for rope in sets):
        return (
            f"vLLM accepts texts of the trained length for RoPE type 'longrope'. Start it with --max-model-len "
            f"{target_length}; it then rotates every text by the long list."
        )
    return None

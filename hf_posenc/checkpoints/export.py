"""Export a patched model as a plain checkpoint, where transformers has a RoPE type for the scheme.

transformers then computes the same logits without this package. The rotation is written in the form of transformers 5,
``rope_parameters``, and in that of earlier releases (`hf_posenc.checkpoints.old_rope_keys`).

Two schemes rotate by the sequence length (dynamic NTK, LongRoPE). transformers has them as well, but rotates every
query by the length of the whole sequence and a cached key by the length when it was cached. Up to the trained length
both compute the same (transformers' ``dynamic`` until it has seen a longer sequence: it then keeps those frequencies
for a sequence of exactly the trained length); `export_native` warns.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hf_posenc.checkpoints.held_out_texts import copy_held_out
from hf_posenc.checkpoints.load import from_pretrained, is_quantised
from hf_posenc.checkpoints.model_name import ModelName
from hf_posenc.checkpoints.old_rope_keys import add_old_form, is_misread_before_5
from hf_posenc.checkpoints.plain_config import explained_refusal, plain_config, section_of
from hf_posenc.checkpoints.readers.compare import readings
from hf_posenc.checkpoints.tokenizer import copy_tokenizer
from hf_posenc.core.files.hf_errors import reason_of
from hf_posenc.core.files.paths import folder_to_write
from hf_posenc.core.files.staged import staged
from hf_posenc.errors import EngineDiffers, NotExpressible, NotReadBefore5, OnlyWithinTrainedLength, ReadOtherwise
from hf_posenc.patches.shared.rope_parameters import TRAINED_LENGTH, TRAINED_THETA, UNSCALED, by_layer_type, rotations
from hf_posenc.patching.model_card import write_plain_section
from hf_posenc.patching.offloading import offloaded_values
from hf_posenc.patching.peft_sidecar import refuse_adapter_folder
from hf_posenc.patching.state import base_model_of, describe
from hf_posenc.patching.text_limits import raise_limits_in

ORIGINAL = "original_max_position_embeddings"  # where RoPE types have it
NOT_MULTIPLIED = ("yarn", "longrope", "llama3")  # yarn: the original length is multiplied, which is right
NEVER_MULTIPLIED = "gemma3"  # part of a model type that vLLM excepts


def export_native(model: Any, folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Save a patched model as a checkpoint that computes the same logits in plain transformers.

    Args:
        model: a patched model, which is not changed; or the name of a checkpoint or a PEFT adapter as `from_pretrained`
            takes it, whose adapter is then merged and whose tokenizer is saved as well.
        folder: where the checkpoint goes.

    Returns:
        The ``rope_parameters`` written into its ``config.json``.

    Warns:
        OnlyWithinTrainedLength: logits are equal up to the trained length, and differ beyond.
        NotReadBefore5: an older transformers would leave the scaling out.
        EngineDiffers: an engine would compute something else; `read_elsewhere` says what each computes.
        ReadOtherwise: vLLM would accept texts of another length.
        LimitKept: the tokenizer cuts texts below the trained length, and still does.

    Raises:
        NotPatched: the model carries no scheme.
        FolderUnusable: the folder is a file, or holds a PEFT adapter.
        NotExpressible: transformers has no RoPE type that computes this scheme; or the model has a PEFT adapter or
            quantised weights.
        PosEncError: a name leads to no model.
    """
    if isinstance(model, (str, os.PathLike)):
        loaded = merge_adapter(from_pretrained(model))
        parameters = export_native(loaded, folder)
        copy_tokenizer(ModelName.of(model), Path(folder))
        raise_limits_in(Path(folder), loaded)
        copy_held_out(model, Path(folder))
        return parameters
    folder = folder_to_write(folder)
    found, trained = plain_config(model), describe(model).trained_length
    with explained_refusal(found.parameters):
        plain = filled(model, type(model), found.config, offloaded_values(model))
    with plain_staged(plain, model, folder, found.compared_length) as staging:
        add_old_form(staging, found.of_base, found.section)
    if found.short:
        warnings.warn(
            f"In texts longer than {trained} tokens, transformers does not compute scheme "
            f"{describe(model).scheme!r}. Stay within that length there, or use the checkpoint that "
            "save_pretrained writes.",
            OnlyWithinTrainedLength,
            stacklevel=2,
        )
    if is_misread_before_5(found.of_base):
        warnings.warn(
            f"transformers before 5 reads this {found.of_base.model_type} without its scaling, and without an "
            "error. Use transformers 5 or later.",
            NotReadBefore5,
            stacklevel=2,
        )
    otherwise = [str(reading) for reading in readings(found) if reading.verdict in ("different", "unable")]
    if otherwise:
        warnings.warn(
            f"Not every engine computes this checkpoint as transformers does. {'; '.join(otherwise)}. Serve it with an "
            "engine that is not in this list.",
            EngineDiffers,
            stacklevel=2,
        )
    length = length_in_vllm(found.of_base, describe(model).target_length)
    if length is not None:
        warnings.warn(length, ReadOtherwise, stacklevel=2)
    return found.parameters


export = export_native  # the name of the command


def filled(model: Any, make: Callable[[Any], Any], config: Any, weights: Mapping[str, Tensor]) -> Any:
    """The plain model that ``make(config)`` builds, with these weights, but for those it has no place for.

    How it generates is that of the patched ``model``.

    Raises:
        NotExpressible: the class of the installed transformers has weights beside these, or they are quantised.
    """
    if is_quantised(model):
        raise NotExpressible(
            f"The weights of this {type(model).__name__} are quantised, which a plain checkpoint cannot record. Load "
            "the model in a floating dtype, without quantization_config, and export that; save_pretrained keeps this "
            "one as it is."
        )
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


@contextmanager
def plain_staged(plain: Any, model: Any, folder: str, length: int) -> Iterator[Path]:
    """A folder with ``plain``, made of a patched ``model``, which replaces ``folder`` at the end.

    Its card says that it computes the same up to ``length`` tokens.
    """
    report = describe(model)
    refuse_adapter_folder(Path(folder))
    state_training(plain, model)
    with staged(folder) as staging:
        plain.save_pretrained(staging)
        raise_limits_in(Path(folder), model, into=staging)
        write_plain_section(staging, report.scheme, report.trained_length, length)
        yield staging


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


def merge_adapter(model: Any) -> Any:
    """Merge a model's PEFT adapter into its weights; a model without an adapter is returned unchanged.

    Raises:
        NotExpressible: adapters of this type, such as prompts, are no change of weights, or not of these.
    """
    if not hasattr(model, "peft_config"):
        return model
    if not hasattr(model, "merge_and_unload"):
        raise NotExpressible(
            f"The PEFT adapter of this {type(model).__name__} cannot be merged into the weights. "
            "Use the adapter itself: hf_posenc.from_pretrained and --model take it."
        )
    untie(model.base_model.model)
    try:
        return model.merge_and_unload()
    except (NotImplementedError, TypeError, ValueError) as error:  # PEFT's words for layers it cannot merge into
        raise NotExpressible(
            f"PEFT cannot merge the adapter of this {type(model).__name__}: {reason_of(error)}. Use the "
            "adapter itself: hf_posenc.from_pretrained and --model take it."
        ) from error


def untie(model: Any) -> None:
    """Give the output layer weights of its own where an adapter would be merged into one of two tied layers."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    tied = model.get_input_embeddings(), model.get_output_embeddings()
    if None not in tied and tied[0].weight is tied[1].weight and any(isinstance(one, BaseTunerLayer) for one in tied):
        output = getattr(tied[1], "base_layer", tied[1])
        output.weight = nn.Parameter(output.weight.detach().clone(), requires_grad=False)
        model.config.tie_word_embeddings = False


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

"""Validate the arguments of fine-tuning before a folder is made or a model wrapped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch.utils.data import Dataset
from transformers import TrainerCallback

from hf_posenc.core.files.hf_errors import UNEXPECTED
from hf_posenc.errors import (
    TrainingImpossible,
    UnknownOption,
    WrongKind,
    first_line,
    nearest,
    shown,
)
from hf_posenc.patching.preconditions.weights import check_finite
from hf_posenc.patching.state import base_model_of
from hf_posenc.texts import HubDataset, TextSource
from hf_posenc.texts.dataset_objects import is_dataset
from hf_posenc.training.config import Training
from hf_posenc.training.config_checks import LEARNING_RATE

if TYPE_CHECKING:
    from transformers import TrainingArguments


def check_model_and_settings(model: Any, training: Any) -> None:
    """Refuse a model that cannot be trained, and settings of another type.

    Raises:
        UnsupportedModel: no adapter knows the model.
        TrainingImpossible: its weights are on the meta device.
        WeightsNotFinite: one of them is NaN or infinite.
        WrongKind: the settings are no `Training`.
    """
    base_model_of(model)
    if any(weight.is_meta for weight in model.parameters()):
        raise TrainingImpossible("The weights of this model are on the meta device. Load it before it is trained.")
    check_finite(model)
    if not isinstance(training, Training):
        raise WrongKind(f"Settings are needed, got {shown(training)}. Pass Training(length=..., steps=...).")


def check_tokenizer(tokenizer: Any, *, causal: bool) -> None:
    """Refuse what is no tokenizer, or one without a mask token for a masked model.

    Raises:
        WrongKind: it is no tokenizer.
        TrainingImpossible: it has no mask token.
    """
    if isinstance(tokenizer, str) or not callable(tokenizer):
        raise WrongKind(f"A tokenizer is needed, got {shown(tokenizer)}. Pass AutoTokenizer.from_pretrained(...).")
    if not causal and getattr(tokenizer, "mask_token_id", None) is None:
        raise TrainingImpossible(
            "This tokenizer has no mask token, which a masked model is trained and measured with. "
            "Pass the model's own tokenizer, or set tokenizer.mask_token."
        )


def check_callbacks(given: Any) -> None:
    """Refuse callbacks that `Trainer` cannot call.

    Raises:
        WrongKind: one is no callback.
    """
    if not isinstance(given, (list, tuple)) or not all(isinstance(one, TrainerCallback) for one in given):
        raise WrongKind(f"callbacks is a list of transformers' TrainerCallback, got {shown(given)}. Pass such objects.")


def source_of(name: str, given: Any) -> Any:
    """Where documents come from; rows that are ready, with token ids, as a data set.

    Args:
        name: of the argument.
        given: a list of documents and paths, one path, a `datasets` object, a `TextSource`, or ready rows.

    Raises:
        WrongKind: it is nothing of that, such as a single text.
    """
    if isinstance(given, TextSource):
        return given
    if is_dataset(given):
        return TextSource((given,))
    if isinstance(given, Dataset):
        return given
    if isinstance(given, (Path, HubDataset)):
        return TextSource((given,))
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        raise WrongKind(f"{name} is a list of documents, got {shown(given)}. Pass one, such as [text] or [Path(file)].")
    parts = tuple(given)
    odd = [part for part in parts if not isinstance(part, (str, Path, HubDataset)) and not is_dataset(part)]
    if odd:
        raise WrongKind(f"{name} is a list of documents as text, and has {shown(odd[0])}. Pass texts and paths alone.")
    return TextSource(parts)


def training_arguments(settings: Mapping[str, Any], more: Any) -> TrainingArguments:
    """`TrainingArguments` of a run; the caller's override the others.

    Raises:
        WrongKind: the caller's are no mapping.
        UnknownOption: one of them is none of `TrainingArguments`.
        TrainingImpossible: one has a value that is refused there.
    """
    from transformers import TrainingArguments

    if more is not None and not isinstance(more, Mapping):
        raise WrongKind(f"arguments is a mapping from names to values, got {shown(more)}. Pass a dictionary.")
    try:
        made = TrainingArguments(**{**settings, **(more or {})})
    except TypeError as error:
        name = UNEXPECTED.search(str(error))
        known = {field.name for field in fields(TrainingArguments)}
        raise UnknownOption(
            f"TrainingArguments takes no {name[1]!r}.{nearest(name[1], known)} Leave it out."
            if name
            else f"TrainingArguments cannot be made: {error}. Correct arguments."
        ) from error
    except (ValueError, AttributeError, ImportError) as error:
        raise TrainingImpossible(
            f"TrainingArguments refuses what was asked for: {first_line(error)}. Correct arguments."
        ) from error
    LEARNING_RATE.check("learning_rate", made.learning_rate)
    return made

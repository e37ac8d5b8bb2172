"""Inputs of a fine-tuning run: arguments are checked and texts are read before the model is changed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_posenc.core.files.paths import nearest_existing
from hf_posenc.errors import TrainingImpossible, WrongKind, shown
from hf_posenc.patching.layer_schemes import is_causal
from hf_posenc.patching.state import base_model_of
from hf_posenc.patching.weights import check_loaded
from hf_posenc.texts import TextSource
from hf_posenc.training.config import Training
from hf_posenc.training.corpus import OnRead
from hf_posenc.training.held_out import HeldOut
from hf_posenc.training.methods import LearningRate, check_method, learning_rate_for
from hf_posenc.training.rows import HeldOutSplit, held_out_rows, own_rows, training_rows

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True)
class RunInputs:
    """The inputs of a fine-tuning run.

    Attributes:
        training: settings, with the chosen learning rate.
        rate: learning rate and its source.
        causal: whether the model is a decoder.
        rows: training rows.
        windows: held-out windows by length; None if nothing is held out.
        held_out_tokens: number of tokens held out of the training texts.
        held_out: record of the text that the windows were cut from.
    """

    training: Training
    rate: LearningRate
    causal: bool
    rows: Any
    windows: dict[str, Any] | None
    held_out_tokens: int = 0
    held_out: HeldOut | None = None

    @property
    def trains_all(self) -> bool:
        """Whether all weights of the model are trained, without PEFT."""
        return self.training.method == "full"


def read_inputs(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    texts: Any,
    training: Training,
    *,
    held_out: Any,
    folder: Path | None = None,
    on_read: OnRead | None = None,
) -> RunInputs:
    """Check the arguments of a run, then read its texts; arguments and errors are those of `finetune`."""
    check_model(model)
    if not isinstance(training, Training):
        raise WrongKind(f"Settings are needed, got {shown(training)}. Pass Training(length=..., steps=...).")
    given = own_rows(texts)
    source = TextSource.of_texts("texts", texts) if given is None else given
    is_split = held_out is None or isinstance(held_out, HeldOutSplit)
    measured_on = held_out if is_split else TextSource.of_texts("held_out", held_out)
    causal = is_causal(model)
    if measured_on is not None or isinstance(source, TextSource):  # rows of token ids need none
        check_tokenizer(tokenizer, causal=causal)
    check_method(training.method, model)
    rate = learning_rate_for(training.method, model.num_parameters())
    if training.learning_rate is not None:
        rate = LearningRate(training.learning_rate, "as given")
    rows, end = training_rows(
        model, tokenizer, source, training, held_out=measured_on,
        folder=None if folder is None else nearest_existing(folder), on_read=on_read,
    )  # fmt: skip
    windows = None if measured_on is None else held_out_rows(model, tokenizer, measured_on, training, end)
    chosen = replace(training, learning_rate=rate.value)
    measured = HeldOut.of(measured_on if end is None else source, windows)
    return RunInputs(chosen, rate, causal, rows, windows, 0 if end is None else len(end.tokens), measured)


def check_model(model: Any) -> None:
    """Refuse a model that cannot be trained."""
    if base_model_of(model)[0] is model:
        raise TrainingImpossible(
            f"{type(model).__name__} has no head, so there is no loss. Fine-tune a checkpoint with a "
            "language-model head, or patch this one and train it with its own loss."
        )
    check_loaded(model)


def check_tokenizer(tokenizer: Any, *, causal: bool) -> None:
    """Refuse an object that is no tokenizer, and a tokenizer without a mask token for a masked model."""
    if isinstance(tokenizer, str) or not callable(tokenizer):
        raise WrongKind(f"A tokenizer is needed, got {shown(tokenizer)}. Pass AutoTokenizer.from_pretrained(...).")
    if not causal and getattr(tokenizer, "mask_token_id", None) is None:
        raise TrainingImpossible(
            "This tokenizer has no mask token, and training a masked model needs one. "
            "Pass the model's own tokenizer, or set tokenizer.mask_token."
        )

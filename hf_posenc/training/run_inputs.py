"""What a fine-tuning run reads, checked and read before the model is changed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch.utils.data import Dataset

from hf_posenc.core.files.paths import nearest_existing
from hf_posenc.errors import TrainingImpossible, WrongKind, shown
from hf_posenc.patching.preconditions.weights import check_finite
from hf_posenc.patching.state import base_model_of
from hf_posenc.patching.trained_length import is_causal
from hf_posenc.texts import TextSource
from hf_posenc.texts.dataset_objects import is_dataset
from hf_posenc.training.attention_groups import check_attention_groups
from hf_posenc.training.config import Training
from hf_posenc.training.corpus import OnRead
from hf_posenc.training.held_out_split import HeldOutSplit
from hf_posenc.training.learning_rates import LearningRate, chosen_rate
from hf_posenc.training.methods import Method, check_settings, method_of
from hf_posenc.training.rows import held_out_rows, training_rows

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True)
class RunPlan:
    """A fine-tuning run that was checked, and whose texts are not read yet.

    Attributes:
        training: settings, with the learning rate that was chosen.
        method: which parameters are trained.
        rate: the learning rate, and where it comes from.
        causal: whether the model is a decoder.
        source: of the texts to train on, or the rows themselves.
        measured_on: of the held-out texts, or that the end of the texts is set aside; None where nothing is held out.
    """

    training: Training
    method: Method
    rate: LearningRate
    causal: bool
    source: Any
    measured_on: Any

    @property
    def trains_all(self) -> bool:
        """Whether the model's own weights are trained, and PEFT adds none."""
        return self.method.configure is None


@dataclass(frozen=True)
class RunInputs(RunPlan):
    """The inputs of a fine-tuning run.

    Attributes:
        rows: to train on.
        windows: held-out rows by length; None where nothing is held out.
        held_out_tokens: tokens of the texts that were held out.
    """

    rows: Any
    windows: dict[str, Any] | None
    held_out_tokens: int = 0


def run_plan(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, texts: Any, training: Training, *, held_out: Any
) -> RunPlan:
    """Check a run; arguments and errors are those of `finetune`."""
    check_model(model)
    if not isinstance(training, Training):
        raise WrongKind(f"Settings are needed, got {shown(training)}. Pass Training(length=..., steps=...).")
    source = texts if is_rows(texts) else TextSource.of_texts("texts", texts)
    measured_on = held_out_of(held_out)
    causal = is_causal(model)
    if measured_on is not None or not isinstance(source, Dataset):  # rows that are ready need none
        check_tokenizer(tokenizer, causal=causal)
    method = method_of(training.method, model, rank=training.rank)
    check_settings(training)
    check_attention_groups(model, training, causal=causal)
    rate = chosen_rate(training, model)
    return RunPlan(replace(training, learning_rate=rate.value), method, rate, causal, source, measured_on)


def read_inputs(
    plan: RunPlan,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    *,
    folder: Path | None,
    on_read: OnRead | None,
) -> RunInputs:
    """Read the texts of a run; arguments and errors are those of `finetune`."""
    rows, end = training_rows(
        model, tokenizer, plan.source, plan.training, held_out=plan.measured_on,
        folder=None if folder is None else nearest_existing(folder), on_read=on_read,
    )  # fmt: skip
    held_out = plan.measured_on
    windows = None if held_out is None else held_out_rows(model, tokenizer, held_out, plan.training, end)
    return RunInputs(**vars(plan), rows=rows, windows=windows, held_out_tokens=0 if end is None else len(end.tokens))


def held_out_of(given: Any) -> Any:
    """Where held-out documents come from; `HeldOutSplit`, ready rows and None as they are."""
    ready = given is None or isinstance(given, HeldOutSplit) or is_rows(given)
    return given if ready else TextSource.of_texts("held_out", given)


def is_rows(texts: Any) -> bool:
    """Whether texts are rows of token ids already: a data set of torch, and not of the library `datasets`."""
    return isinstance(texts, Dataset) and not is_dataset(texts)


def check_model(model: Any) -> None:
    """Refuse a model that cannot be trained.

    Raises:
        UnsupportedModel: no adapter knows the model.
        TrainingImpossible: its weights are on the meta device.
        WeightsNotFinite: one of them is NaN or infinite.
    """
    base_model_of(model)
    if any(weight.is_meta for weight in model.parameters()):
        raise TrainingImpossible("The weights of this model are on the meta device. Load it before it is trained.")
    check_finite(model)


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

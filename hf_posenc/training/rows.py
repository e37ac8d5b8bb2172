"""The rows to train on, and the held-out windows to measure on, for a model and its settings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.utils.data import Dataset

from hf_posenc.errors import LengthContradiction
from hf_posenc.patching.state import base_model_of, describe, is_patched
from hf_posenc.training.config import Training
from hf_posenc.training.dataset import (
    PackedRows,
    SeparatedRows,
    check_separate_packing,
    documents,
    held_out_windows,
)
from hf_posenc.training.methods import Method
from hf_posenc.training.validate import check_tokens

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def is_causal(model: nn.Module) -> bool:
    """Whether a model predicts next tokens."""
    config = base_model_of(model)[0].config
    return bool(getattr(config, "is_decoder", False)) or config.model_type != "bert"


def lengths_of(model: nn.Module) -> tuple[int, int]:
    """Trained and target length of a model, in tokens."""
    if is_patched(model):
        report = describe(model)
        return report.trained_length, report.target_length
    base, adapter = base_model_of(model)
    length = adapter.own_length(base.config)  # type: ignore[arg-type]
    return length, length


def training_rows(
    model: nn.Module, tokenizer: PreTrainedTokenizerBase, texts: Any, training: Training, method: Method
) -> Any:
    """Rows of ``training.length`` tokens to train on.

    Raises:
        LengthContradiction: the model does not reach that far, or there is not even one row.
        TrainingImpossible: documents cannot be kept separate as asked.
    """
    _, reach = lengths_of(model)
    seen = training.length + (training.rank if method.virtual_tokens else 0)
    if seen > reach:
        raise LengthContradiction(
            f"Rows of {seen} tokens were asked for, and this model reaches {reach}. "
            "Choose a shorter length, or patch the model with a larger factor."
        )
    causal = is_causal(model)
    if training.packing == "separate":
        check_separate_packing(causal, virtual_tokens=method.virtual_tokens)
    if isinstance(texts, Dataset):
        return texts
    token_lists = documents(tokenizer, texts)
    check_tokens(model, token_lists)
    if training.packing == "separate":
        return SeparatedRows(token_lists, training.length)
    return PackedRows(token_lists, training.length, causal=causal)


def held_out_rows(
    model: nn.Module, tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], training: Training
) -> dict[str, Any]:
    """Held-out windows to measure on, by length.

    Raises:
        LengthContradiction: the model does not reach a length, or the texts do not fill it.
    """
    trained, target = lengths_of(model)
    lengths = sorted(training.eval_lengths) or doubling_lengths(trained, target)
    if not 2 <= lengths[0] <= lengths[-1] <= target:
        raise LengthContradiction(
            f"Lengths {lengths} were to be measured, and this model reaches {target}. Choose lengths from 2 to that."
        )
    token_lists = documents(tokenizer, texts)
    check_tokens(model, token_lists)
    mask = None if is_causal(model) else tokenizer.mask_token_id
    return dict(held_out_windows(token_lists, lengths, count=training.eval_windows, mask=mask))


def doubling_lengths(trained: int, target: int) -> list[int]:
    """``trained``, doubled while it stays below ``target``, and ``target``."""
    lengths = [trained]
    while 2 * lengths[-1] < target:
        lengths.append(2 * lengths[-1])
    return sorted({*lengths, target})

"""Training rows and held-out windows of a run, cut from its texts."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from accelerate import PartialState
from torch import nn
from torch.utils.data import Dataset

from hf_posenc.core.lengths import doubling_lengths
from hf_posenc.errors import HeldOutOverlap, LengthContradiction, TrainingImpossible
from hf_posenc.patching.layer_schemes import is_causal
from hf_posenc.patching.state import base_model_of, describe, is_patched
from hf_posenc.patching.weights import check_vocabulary
from hf_posenc.texts import TextSource
from hf_posenc.texts.document import TEXT, is_dataset
from hf_posenc.training.config import Training
from hf_posenc.training.corpus import Corpus, OnRead, tokenise
from hf_posenc.training.dataset import PackedRows, check_row, held_out_windows, tokens_of_windows

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from hf_posenc.texts import TextPart
ROW_COLUMNS = ("input_ids", "labels", "position_ids", "attention_mask")  # arguments of a model
SHARE, MOST = 0.05, 0.25
"""Shares of a text that are held out: the usual one, and the most if the windows need more tokens."""


def lengths_of(model: nn.Module) -> tuple[int, int]:
    """Return the trained and the target length of a patched model, in tokens.

    For an unpatched model both are its own context length: the trained length, or the length that its configuration
    scales it to.
    """
    if is_patched(model):
        report = describe(model)
        return report.trained_length, report.target_length
    base, adapter = base_model_of(model)
    length = adapter.reach(base.config)
    return length, length


def training_rows(
    model: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    texts: Any,
    training: Training,
    *,
    held_out: TextSource | HeldOutSplit | None = None,
    folder: Path | None = None,
    on_read: OnRead | None = None,
) -> tuple[Any, Corpus | None]:
    """Return rows of ``training.length`` tokens, and the end of the text if it was held out."""
    check_reach(model, training.length)
    separate = training.packing == "separate"
    if separate and not is_causal(model):
        raise TrainingImpossible(
            "transformers does not separate packed documents in an encoder. Choose packing='joined'."
        )
    if not isinstance(texts, TextSource):
        if hasattr(texts, "__len__") and len(texts):
            check_row(texts[0])
        return texts, None
    base = base_model_of(model)[0]
    shared = len(texts.named() & held_out.named()) if isinstance(held_out, TextSource) else 0
    if shared:
        warnings.warn(
            f"{shared} training files or datasets are held out as well, so the held-out loss is measured on training "
            "text. Remove them from one of the two.",
            HeldOutOverlap,
            stacklevel=4,  # where `finetune` was called
        )
    enough = tokens_of_run(training) if texts.streams else inf
    corpus = tokenise(tokenizer, texts.documents(), folder=folder, enough=enough, on_read=on_read)
    check_vocabulary(base, corpus.highest)
    end = None
    if isinstance(held_out, HeldOutSplit) and not texts.streams:
        needed = tokens_of_windows(measured_lengths(model, training), training.eval_windows)
        corpus, end = split_end(corpus, needed)
    return PackedRows(corpus, training.length, separate=separate), end


def check_reach(model: nn.Module, length: int) -> None:
    """Refuse rows that are longer than the target length of the model."""
    _, reach = lengths_of(model)
    if length > reach:
        raise LengthContradiction(
            f"Rows of {length} tokens exceed the length that this model reaches, {reach}. "
            "Choose a shorter length, or patch the model with a larger factor."
        )


def tokens_of_run(training: Training) -> float:
    """Return the number of tokens that the steps of a run read in all processes; infinite if it has epochs."""
    if training.steps is None:
        return inf
    processes = PartialState(cpu=not torch.accelerator.is_available()).num_processes
    return training.steps * training.batch * training.accumulate * training.length * processes


def count_of(rows: Any) -> int | None:
    """Return the number of rows; None for rows that are streamed during training."""
    return len(rows) if hasattr(rows, "__len__") else None


def own_rows(texts: Any) -> Any:
    """Return the caller's rows of token ids: a dataset of torch, or one of `datasets` as tensors; None for texts."""
    if not is_dataset(texts):
        return texts if isinstance(texts, Dataset) else None
    columns = texts.column_names if is_dataset(texts, ("Dataset",)) else ()
    if "input_ids" not in columns or TEXT in columns:
        return None
    return texts.select_columns([name for name in ROW_COLUMNS if name in columns]).with_format("torch")


def held_out_rows(
    model: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    held_out: TextSource | HeldOutSplit,
    training: Training,
    end: Corpus | None = None,
) -> dict[str, Any]:
    """Return held-out windows by length, cut from ``end`` if it is given, else from the documents of ``held_out``."""
    lengths = measured_lengths(model, training)
    if end is None:
        texts = held_out.otherwise if isinstance(held_out, HeldOutSplit) else held_out
        if texts is None:
            raise LengthContradiction(
                "The end of this text cannot be held out: it is too short for the measured lengths, or it is "
                "streamed. Pass held-out documents, or more text."
            )
        texts = TextSource.of_texts("held_out", texts)
        end = tokenise(tokenizer, texts.documents())
        check_vocabulary(base_model_of(model)[0], end.highest)
    mask = None if is_causal(model) else tokenizer.mask_token_id
    return dict(held_out_windows(end, lengths, count=training.eval_windows, mask=mask))


def measured_lengths(model: nn.Module, training: Training) -> list[int]:
    """Return the lengths at which the held-out loss is measured, in tokens."""
    trained, target = lengths_of(model)
    lengths = sorted(training.eval_lengths) or doubling_lengths(trained, target)
    if not 2 <= lengths[0] <= lengths[-1] <= target:
        raise LengthContradiction(
            f"Lengths {lengths} are not within 2 … {target}, which this model reaches. Choose others."
        )
    return lengths


@dataclass(frozen=True)
class HeldOutSplit:
    """Hold out the end of the training text: its last 5 %, or as many tokens as the windows need, at most a quarter.

    Attributes:
        otherwise: held-out documents for a text that is too short for that, or is streamed. Without them, such a text
            is refused.
    """

    otherwise: TextSource | Sequence[TextPart] | None = None


def split_end(corpus: Corpus, needed: int) -> tuple[Corpus, Corpus | None]:
    """Split a corpus into training tokens and held-out tokens.

    A document across the border is cut in two. The second is None if ``needed`` exceeds a quarter of the tokens.
    """
    tokens = len(corpus.tokens)
    if needed > MOST * tokens:
        return corpus, None
    end = tail(corpus, max(needed, round(SHARE * tokens)))
    border = tokens - len(end.tokens)
    return replace(corpus, tokens=corpus.tokens[:border], starts=corpus.starts[corpus.starts < border]), end


def tail(corpus: Corpus, count: int) -> Corpus:
    """Return the last ``count`` tokens, or all of a shorter text; their first document starts at index 0."""
    border = max(0, len(corpus.tokens) - count)
    starts = corpus.starts[corpus.starts > border] - border
    return replace(corpus, tokens=corpus.tokens[border:], starts=torch.cat((torch.zeros(1, dtype=torch.long), starts)))

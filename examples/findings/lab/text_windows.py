"""Windows of the measured text as token ids, for findings that call a model themselves."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

from torch import Tensor
from torch.nn.functional import cross_entropy

from hf_posenc.checkpoints.model_name import ModelName
from hf_posenc.checkpoints.tokenizer import tokenizer_of as named_tokenizer
from hf_posenc.eval.texts.measured_text import measured_text
from hf_posenc.eval.texts.sampling import placed
from hf_posenc.eval.texts.windows import tokenized_documents
from lab.cells import DocumentScore
from lab.finding import Job
from lab.sweep import DOCUMENTS


class WindowTokens(NamedTuple):
    """The tokens of a text up to the end of a window; windows of one text share a cluster."""

    document: str
    cluster: str
    ids: tuple[int, ...]


@lru_cache(maxsize=1)
def tokenizer_of(model: str) -> Any:
    """The tokenizer of a model; cached, with its tokenized text, because every variant needs it."""
    return named_tokenizer(ModelName.of(model))


def windows_of(job: Job, longest: int) -> list[WindowTokens]:
    """So many windows as the options of a job say in ``samples``, each with ``longest`` tokens before its end."""
    documents = tokenized_documents(tokenizer_of(job.model), measured_text(None))
    ends = [
        (source, end) for source, some in placed(documents, job.options["samples"], longest, DOCUMENTS) for end in some
    ]
    alone = len(documents) == 1  # a result about this one text, of which windows are a sample
    return [WindowTokens(f"{s.name} {end}".strip(), str(end) if alone else s.name, s.ids[:end]) for s, end in ends]


def token_losses(logits: Tensor, ids: Tensor, scored: int) -> Tensor:
    """Cross-entropy of the last ``scored`` tokens of each row of ``ids [row, token]``, nats, ``[row, scored]``."""
    losses = cross_entropy(logits[:, -scored - 1 : -1].flatten(0, 1), ids[:, -scored:].flatten(), reduction="none")
    return losses.view(len(ids), scored)


def scored_windows(windows: list[WindowTokens], values: Tensor) -> list[DocumentScore]:
    """One score for each window."""
    return [DocumentScore(w.document, w.cluster, value) for w, value in zip(windows, values.tolist(), strict=True)]

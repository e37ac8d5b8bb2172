"""Datasets of rows of equal length: training rows, and held-out windows.

Rows are dictionaries of tensors ``[token]``. The collator labels rows without labels: with their own tokens, or, for a
masked model, with the tokens under masks that it draws anew in every epoch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from hf_posenc.errors import LengthContradiction, WrongKind
from hf_posenc.training.corpus import Corpus

IGNORED_LABEL = -100  # label that the loss ignores
MASK_SHARE = 0.15  # share of tokens that are masked for a masked model

Row = dict[str, Tensor]


class PackedRows(Dataset):
    """Concatenated documents, cut into rows; the remainder is dropped.

    With ``separate``, the positions of each document start at 0: from these, transformers separates packed documents.
    The first token of a document then has no label, because only the preceding document could predict it.

    Raises:
        LengthContradiction: the corpus is shorter than one row.
    """

    def __init__(self, corpus: Corpus, length: int, *, separate: bool = False) -> None:
        tokens, documents = corpus.tokens, len(corpus.starts)
        count = len(tokens) // length
        if count == 0:
            raise LengthContradiction(
                f"The texts have {len(tokens)} tokens (documents: {documents}), less than one row of {length}. "
                "Pass more text (--text), or a smaller length (--set length=N)."
            )
        self.rows = tokens[: count * length].view(count, length)
        self.starts, self.separate, self.digest = corpus.starts, separate, corpus.digest

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Row:
        row, first = self.rows[index].long(), index * self.rows.shape[1]
        if not self.separate:
            return {"input_ids": row}
        indices = torch.arange(first, first + len(row))
        document_starts = self.starts[torch.searchsorted(self.starts, indices, right=True) - 1]
        positions = indices - document_starts.clamp(min=first)
        return {"input_ids": row, "position_ids": positions, "labels": row.masked_fill(positions == 0, IGNORED_LABEL)}


def check_row(row: Any) -> None:
    """Refuse a row of the caller's own dataset that has no token ids."""
    if not isinstance(row, Mapping) or "input_ids" not in row:
        content = ", ".join(map(str, row)) if isinstance(row, Mapping) else type(row).__name__
        raise WrongKind(
            f"A row of the data set has no 'input_ids', only {content or 'nothing'}. Pass rows of token ids, or "
            "texts: a list, or a dataset of the library datasets."
        )


class HeldOutWindows(Dataset):
    """Windows of ``length`` tokens. Windows of every length end at the same tokens, so that only the context differs.

    Args:
        tokens: held-out text, ``[token]``.
        length: tokens per window.
        longest: the longest measured length; windows of this length are spread evenly over the text.
        count: number of windows.
        scored: tokens at the end of each window that are scored.
        mask: id of the mask token of a masked model; None for a causal model.

    Raises:
        LengthContradiction: the text is shorter than ``longest``.
    """

    def __init__(
        self, tokens: Tensor, length: int, *, longest: int, count: int, scored: int, mask: int | None = None
    ) -> None:
        if len(tokens) < longest:
            raise LengthContradiction(
                f"The held-out texts have {len(tokens)} tokens, and the longest measured length is {longest}. "
                "Pass more text, or smaller eval_lengths."
            )
        self.tokens, self.length, self.scored, self.mask = tokens, length, scored, mask
        self.ends = torch.linspace(longest, len(tokens), count).long().tolist()

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, index: int) -> Row:
        end = self.ends[index]
        ids = self.tokens[end - self.length : end].to(torch.long, copy=True)
        is_scored = torch.zeros(self.length, dtype=torch.bool)
        if self.mask is None:
            is_scored[-self.scored :] = True
            return {"input_ids": ids, "labels": ids.masked_fill(~is_scored, IGNORED_LABEL)}
        order = torch.randperm(self.scored, generator=torch.Generator().manual_seed(index))
        is_scored[self.length - self.scored + order[: max(1, round(MASK_SHARE * self.scored))]] = True
        masked = ids.masked_fill(is_scored, self.mask)
        return {"input_ids": masked, "labels": ids.masked_fill(~is_scored, IGNORED_LABEL)}


def held_out_windows(
    corpus: Corpus, lengths: Sequence[int], *, count: int, mask: int | None = None
) -> dict[str, HeldOutWindows]:
    """Return the held-out windows of every length, by the length as a string."""
    scored = scored_tokens(lengths)
    return {
        str(length): HeldOutWindows(corpus.tokens, length, longest=max(lengths), count=count, scored=scored, mask=mask)
        for length in lengths
    }


def tokens_of_windows(lengths: Sequence[int], count: int) -> int:
    """Return the number of tokens that a text needs so that no token is scored twice."""
    return max(lengths) + (count - 1) * scored_tokens(lengths)


def scored_tokens(lengths: Sequence[int]) -> int:
    """Return the number of scored tokens at the end of each window: 128, at most half of the shortest length."""
    return min(128, min(lengths) // 2)

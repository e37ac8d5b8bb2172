"""Text as rows of equal length, to train on and to measure on.

Rows are dictionaries of tensors ``[token]``. Rows without labels get them from the collator: their own tokens, or for a
masked model those of masks that are drawn anew in every epoch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from hf_posenc.errors import LengthContradiction, WrongKind
from hf_posenc.training.corpus import Corpus

IGNORED_LABEL = -100  # a label that no loss counts
MASK_SHARE = 0.15  # share of tokens hidden from a masked model

Row = dict[str, Tensor]


class PackedRows(Dataset):
    """Documents one after the other, cut into rows; the remainder is dropped.

    Where they are ``separate``, positions of each document in a row start at 0, where transformers keeps packed
    documents apart. The first token of a document has no label, as only the preceding document could predict it.

    Raises:
        LengthContradiction: there is not even one row.
    """

    def __init__(self, corpus: Corpus, length: int, *, separate: bool = False) -> None:
        tokens, documents = corpus.tokens, len(corpus.starts)
        count = len(tokens) // length
        if count == 0:
            raise LengthContradiction(
                f"The texts have {len(tokens)} tokens (documents: {documents}), less than one row of {length}. "
                "Give more text (--text), or a smaller length (--set length=N)."
            )
        self.rows = tokens[: count * length].view(count, length)
        self.starts, self.separate, self.digest = corpus.starts, separate, corpus.digest

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Row:
        row, first = self.rows[index].long(), index * self.rows.shape[1]
        if not self.separate:
            return {"input_ids": row}
        places = torch.arange(first, first + len(row))
        begins = self.starts[torch.searchsorted(self.starts, places, right=True) - 1]
        positions = places - begins.clamp(min=first)
        return {"input_ids": row, "position_ids": positions, "labels": row.masked_fill(positions == 0, IGNORED_LABEL)}


def check_row(row: Any) -> None:
    """Refuse a row of the caller's own that is none."""
    if not isinstance(row, Mapping) or "input_ids" not in row:
        known = ", ".join(map(str, row)) if isinstance(row, Mapping) else type(row).__name__
        raise WrongKind(
            f"A row of the data set has no 'input_ids', only {known or 'nothing'}. Pass rows of token ids, or texts: a "
            "list, or a dataset of the library datasets."
        )


class HeldOutWindows(Dataset):
    """Windows of ``length`` tokens that end at the same tokens for every length, so that only the context differs.

    Args:
        tokens: held-out text, ``[token]``.
        length: tokens a window.
        longest: the longest length that is measured; windows of it fill the text evenly.
        count: windows.
        scored: tokens at the end of each window that are scored.
        mask: the id that hides tokens from a masked model; None for a causal one.

    Raises:
        LengthContradiction: the text is shorter than ``longest``.
    """

    def __init__(
        self, tokens: Tensor, length: int, *, longest: int, count: int, scored: int, mask: int | None = None
    ) -> None:
        if len(tokens) < longest:
            raise LengthContradiction(
                f"The held-out texts have {len(tokens)} tokens, and the longest measured length is {longest}. "
                "Give more text, or smaller eval_lengths."
            )
        self.tokens, self.length, self.scored, self.mask = tokens, length, scored, mask
        self.ends = torch.linspace(longest, len(tokens), count).long().tolist()

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, index: int) -> Row:
        end = self.ends[index]
        ids = self.tokens[end - self.length : end].to(torch.long, copy=True)
        asked = torch.zeros(self.length, dtype=torch.bool)
        if self.mask is None:
            asked[-self.scored :] = True
            return {"input_ids": ids, "labels": ids.masked_fill(~asked, IGNORED_LABEL)}
        drawn = torch.randperm(self.scored, generator=torch.Generator().manual_seed(index))
        asked[self.length - self.scored + drawn[: max(1, round(MASK_SHARE * self.scored))]] = True
        return {"input_ids": ids.masked_fill(asked, self.mask), "labels": ids.masked_fill(~asked, IGNORED_LABEL)}


def held_out_windows(
    corpus: Corpus, lengths: Sequence[int], *, count: int, mask: int | None = None
) -> dict[str, HeldOutWindows]:
    """Windows at every length, by its name."""
    scored = scored_tokens(lengths)
    return {
        str(length): HeldOutWindows(corpus.tokens, length, longest=max(lengths), count=count, scored=scored, mask=mask)
        for length in lengths
    }


def tokens_of_windows(lengths: Sequence[int], count: int) -> int:
    """Tokens of a text whose windows score no token twice."""
    return max(lengths) + (count - 1) * scored_tokens(lengths)


def scored_tokens(lengths: Sequence[int]) -> int:
    """Tokens that are scored at the end of each window: 128, or half of the shortest length."""
    return min(128, min(lengths) // 2)

"""Text as rows of equal length, to train on and to measure on.

Rows are dictionaries of tensors ``[token]``. Rows to train a masked model on have no labels: the collator draws masks
anew in every epoch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.utils.data import Dataset

from hf_posenc.errors import LengthContradiction, TrainingImpossible
from hf_posenc.patching.preconditions.weights import check_known

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

IGNORED_LABEL = -100  # a label that no loss counts
MASK_SHARE = 0.15  # share of tokens hidden from a masked model

Row = dict[str, Tensor]


def documents(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> list[Tensor]:
    """Tokenise every text to ``[token]``, followed by the tokenizer's end-of-text token, if it has one.

    Raises:
        InvalidInput: most of them are the unknown one.
    """
    end = tokenizer.eos_token_id if tokenizer.eos_token_id is not None else tokenizer.sep_token_id
    ending = [] if end is None else [end]
    encoded = tokenizer(list(texts), add_special_tokens=False, verbose=False)["input_ids"] if texts else []
    check_known(tokenizer, [token for document in encoded for token in document])
    return [torch.tensor([*document, *ending], dtype=torch.long) for document in encoded]


class PackedRows(Dataset):
    """Documents concatenated and cut into rows; the remainder is dropped.

    Raises:
        LengthContradiction: there is not even one row.
    """

    def __init__(self, texts: Sequence[Tensor], length: int, *, causal: bool) -> None:
        tokens = torch.cat(list(texts)) if texts else torch.empty(0, dtype=torch.long)
        count = len(tokens) // length
        if count == 0:
            raise LengthContradiction(
                f"The texts have {len(tokens)} tokens, less than one row of {length}. Give more text, or shorter rows."
            )
        self.rows, self.causal = tokens[: count * length].view(count, length), causal

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Row:
        ids = self.rows[index]
        return {"input_ids": ids, "labels": ids} if self.causal else {"input_ids": ids}


class SeparatedRows(PackedRows):
    """The same rows, with the positions of each document in a row starting at 0.

    transformers keeps packed documents apart where positions start again. The first token of a document has no label,
    as only the preceding document could predict it.
    """

    def __init__(self, texts: Sequence[Tensor], length: int) -> None:
        super().__init__(texts, length, causal=True)
        position = torch.cat([torch.arange(len(text)) for text in texts])[: self.rows.numel()].view_as(self.rows)
        start = position - position[:, :1]  # of the document a row begins in, its first token here is number 0
        own = (position == 0).cumsum(-1) == 0
        self.positions = torch.where(own, start, position)

    def __getitem__(self, index: int) -> Row:
        ids, positions = self.rows[index], self.positions[index]
        return {"input_ids": ids, "position_ids": positions, "labels": ids.masked_fill(positions == 0, IGNORED_LABEL)}


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
                f"The held-out texts have {len(tokens)} tokens, less than the {longest} that are to be measured. "
                "Give more text, or smaller eval_lengths."
            )
        self.tokens, self.length, self.scored, self.mask = tokens, length, scored, mask
        self.ends = torch.linspace(longest, len(tokens), count).long().tolist()

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, index: int) -> Row:
        end = self.ends[index]
        ids = self.tokens[end - self.length : end].clone()
        asked = torch.zeros(self.length, dtype=torch.bool)
        if self.mask is None:
            asked[-self.scored :] = True
            return {"input_ids": ids, "labels": ids.masked_fill(~asked, IGNORED_LABEL)}
        drawn = torch.randperm(self.scored, generator=torch.Generator().manual_seed(index))
        asked[self.length - self.scored + drawn[: max(1, round(MASK_SHARE * self.scored))]] = True
        return {"input_ids": ids.masked_fill(asked, self.mask), "labels": ids.masked_fill(~asked, IGNORED_LABEL)}


def held_out_windows(
    texts: Sequence[Tensor], lengths: Sequence[int], *, count: int, mask: int | None = None
) -> dict[str, HeldOutWindows]:
    """Windows at every length, by its name; at most 128 tokens are scored, and half of the shortest length."""
    scored = min(128, min(lengths) // 2)
    tokens = torch.cat(list(texts)) if texts else torch.empty(0, dtype=torch.long)
    return {
        str(length): HeldOutWindows(tokens, length, longest=max(lengths), count=count, scored=scored, mask=mask)
        for length in lengths
    }


def check_separate_packing(causal: bool, *, virtual_tokens: bool) -> None:
    """Refuse packing with separate documents where it is impossible.

    Raises:
        TrainingImpossible: the model is no decoder, or PEFT drops the positions that tell documents apart.
    """
    if not causal:
        raise TrainingImpossible(
            "transformers does not keep packed documents apart in an encoder. Choose packing='joined'."
        )
    if virtual_tokens:
        raise TrainingImpossible(
            "PEFT drops the positions that tell packed documents apart where it adds virtual tokens. "
            "Choose packing='joined', or another method."
        )

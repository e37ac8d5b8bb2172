"""Rows of a text that is read and tokenised while it is trained on, in the order of the text."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from hf_posenc.errors import LengthContradiction
from hf_posenc.patching.weights import check_known, check_vocabulary
from hf_posenc.texts import TextSource
from hf_posenc.training.corpus import batches, texts_of, token_lists, without_end_tokens
from hf_posenc.training.dataset import Row, row_of_documents

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class StreamedRows(IterableDataset):
    """Rows of `PackedRows` or `SeparatedRows`, of which few are in memory at a time.

    After the last row the text starts again, for as many steps as are asked for.

    Args:
        source: of the documents.
        tokenizer: of the model.
        base: the model, whose vocabulary the tokens must be of.
        length: tokens a row.
        separate: whether documents in a row are kept apart.
        causal: whether rows have labels.
    """

    def __init__(
        self,
        source: TextSource,
        tokenizer: PreTrainedTokenizerBase,
        base: Any,
        length: int,
        *,
        separate: bool,
        causal: bool,
    ) -> None:
        self.source, self.tokenizer, self.base, self.length = source, tokenizer, base, length
        self.separate, self.causal = separate, causal

    def __iter__(self) -> Iterator[Row]:
        worker = get_worker_info()
        if worker is None:
            return self.every_row()
        return islice(self.every_row(), worker.id, None, worker.num_workers)

    def every_row(self) -> Iterator[Row]:
        """The rows of one pass over the text.

        Raises:
            UnreadableDocuments: a document cannot be read.
            InvalidInput: the tokenizer is of another model.
            LengthContradiction: there is not even one row.
        """
        rest, starts, found, seen = np.empty(0, dtype=np.int32), [], 0, 0
        for documents in self.token_batches():
            for ids in documents:
                starts.append(len(rest))
                seen += len(ids)
                rest = np.concatenate([rest, ids])
                while len(rest) >= self.length:
                    found += 1
                    yield self.row(rest[: self.length], [start for start in starts if start < self.length])
                    rest, starts = rest[self.length :], [s - self.length for s in starts if s >= self.length]
        if not found:
            raise LengthContradiction(
                f"The texts have {seen} tokens, less than one row of {self.length}. Give more text (--text), or a "
                "smaller length (--length)."
            )

    def token_batches(self) -> Iterator[list[Any]]:
        """The tokens of the documents, some at a time."""
        for number, texts in enumerate(batches(texts_of(self.source.documents(), self.tokenizer))):
            documents = list(token_lists(self.tokenizer, texts))
            check_vocabulary(self.base, max((int(ids.max()) for ids in documents), default=0))
            if number == 0:
                texts_read = (without_end_tokens(self.tokenizer, ids).tolist() for ids in documents)
                check_known(self.tokenizer, [token for ids in texts_read for token in ids])
            yield documents

    def row(self, tokens: Any, starts: list[int]) -> Row:
        """A row of tokens, in which documents begin at ``starts``."""
        ids = torch.from_numpy(tokens.copy()).long()
        if self.separate:
            return row_of_documents(ids, sorted({0, *starts}))
        return {"input_ids": ids, "labels": ids} if self.causal else {"input_ids": ids}

"""Tokens of a text in a memory-mapped file, so that a corpus may be larger than memory.

Tokens are written one batch of documents after another to an unnamed temporary file, and rows are views of it. The
system removes the file when the process ends, even if it is killed.
"""

from __future__ import annotations

import hashlib
import tempfile
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from hf_posenc.patching.weights import check_unknown_share
from hf_posenc.texts import Document
from hf_posenc.texts.files import check_size

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

BATCH = 1 << 20  # characters tokenised at a time; a longer document is a batch of its own

OnRead = Callable[[int, int], None]
"""Called while a text is tokenised, with the numbers of documents and tokens so far."""


@dataclass(frozen=True)
class Corpus:
    """Tokens of several documents, one after the other.

    Attributes:
        tokens: token ids, ``[token]``, of any integer dtype.
        starts: index of the first token of each document, ``[document]``.
        highest: the highest token id.
        digest: digest of the tokens, in hexadecimal; empty if ``enough`` may have cut the text.
    """

    tokens: Tensor
    starts: Tensor
    highest: int = 0
    digest: str = ""


def tokenise(
    tokenizer: PreTrainedTokenizerBase,
    documents: Iterable[Document],
    *,
    folder: Path | None = None,
    enough: float = inf,
    on_read: OnRead | None = None,
) -> Corpus:
    """Tokenise documents to a memory-mapped file; after each comes the end-of-text token, else the separator.

    Args:
        tokenizer: tokenizer of the model.
        documents: read one after another; documents without tokens are skipped.
        folder: folder of the temporary file; None: the system's default.
        enough: number of tokens after which no more documents are read.
        on_read: called after each batch.
    """
    starts, size, highest, unknown, text_tokens = array("q"), 0, 0, 0, 0
    end = tokenizer.eos_token_id if tokenizer.eos_token_id is not None else tokenizer.sep_token_id
    ending = [] if end is None else [end]
    digest = hashlib.blake2b(digest_size=16)
    with tempfile.TemporaryFile(dir=folder) as file:
        for texts in batches(texts_of(documents)):
            for text in tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]:
                if not text:
                    continue
                ids = np.asarray([*text, *ending], dtype=np.int32)
                starts.append(size)
                size += len(ids)
                highest = max(highest, int(ids.max()))
                text_tokens += len(text)
                unknown += text.count(tokenizer.unk_token_id)  # before the end is added: GPT-2's is the same token
                file.write(ids.tobytes())
                digest.update(ids.tobytes())
            if on_read is not None:
                on_read(len(starts), size)
            if size >= enough:
                break
        check_unknown_share(tokenizer, unknown, text_tokens)
        file.flush()
        mapped = np.memmap(file, dtype=np.int32, mode="c", shape=(size,)) if size else np.empty(0, dtype=np.int32)
    document_starts = torch.tensor(starts, dtype=torch.long)
    return Corpus(torch.from_numpy(mapped), document_starts, highest, digest.hexdigest() if enough == inf else "")


def texts_of(documents: Iterable[Document]) -> Iterator[str]:
    """Yield the texts of documents, each checked to fit in memory."""
    for document in documents:
        check_size(document.name, len(document.content))
        yield document.content


def batches(texts: Iterable[str]) -> Iterator[list[str]]:
    """Group texts into batches of at most `BATCH` characters; a longer text is a batch of its own."""
    group: list[str] = []
    characters = 0
    for text in texts:
        if group and characters + len(text) > BATCH:
            yield group
            group, characters = [], 0
        group.append(text)
        characters += len(text)
    if group:
        yield group

"""The tokens of a text, memory-mapped: a corpus larger than memory can be trained on.

Tokens are written one batch of documents after another to an unnamed temporary file, which the system removes when the
process ends, however it ends; rows are views of it.
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

BATCH = 1 << 20  # characters that are tokenised at a time; a longer document alone

OnRead = Callable[[int, int], None]
"""Called while a text is tokenised, with the documents and tokens so far."""


@dataclass(frozen=True)
class Corpus:
    """Tokens of several documents, one after the other.

    Attributes:
        tokens: ``[token]``, of any whole-number type.
        starts: where each document begins, ``[document]``.
        highest: the highest token id.
        digest: of the tokens, in hexadecimal; empty where ``enough`` may have cut the text.
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
    """Tokenise documents to a memory-mapped file; each is followed by the tokenizer's end-of-text token, if it has one.

    Args:
        tokenizer: of the model.
        documents: read one after another; those without a token are left out.
        folder: on whose disk the file lies; None: where the system keeps temporary files.
        enough: tokens after which no more documents are read.
        on_read: called after each batch.
    """
    starts, size, highest, unknown, read = array("q"), 0, 0, 0, 0
    content, end = hashlib.blake2b(digest_size=16), end_tokens(tokenizer)
    with tempfile.TemporaryFile(dir=folder) as file:
        for texts in batches(texts_of(documents)):
            for text in tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]:
                if not text:
                    continue
                ids = np.asarray([*text, *end], dtype=np.int32)
                starts.append(size)
                size += len(ids)
                highest = max(highest, int(ids.max()))
                read += len(text)
                unknown += text.count(tokenizer.unk_token_id)  # in the text itself: GPT-2's end of one is this token
                file.write(ids.tobytes())
                content.update(ids.tobytes())
            if on_read is not None:
                on_read(len(starts), size)
            if size >= enough:
                break
        check_unknown_share(tokenizer, unknown, read)
        file.flush()
        mapped = np.memmap(file, dtype=np.int32, mode="c", shape=(size,)) if size else np.empty(0, dtype=np.int32)
    begins = torch.tensor(starts, dtype=torch.long)
    return Corpus(torch.from_numpy(mapped), begins, highest, content.hexdigest() if enough == inf else "")


def end_tokens(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The token after every document: the end of a text, else that of a sentence, if the tokenizer has one."""
    end = tokenizer.eos_token_id if tokenizer.eos_token_id is not None else tokenizer.sep_token_id
    return [] if end is None else [end]


def texts_of(documents: Iterable[Document]) -> Iterator[str]:
    """The texts of documents."""
    for document in documents:
        check_size(document.name, len(document.content))
        yield document.content


def batches(texts: Iterable[str]) -> Iterator[list[str]]:
    """Texts in groups of some `BATCH` characters; a longer text alone."""
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

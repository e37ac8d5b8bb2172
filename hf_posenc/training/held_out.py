"""Record of the held-out text of a run, kept in its folder: names of the texts, digest of their tokens, and windows.

The text is not copied: it is read again, and the tokens at its end must have the same digest. The end of the text is
tokenised first; all of it only if the digest differs.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from hf_posenc.checkpoints.held_out_texts import full_paths, recorded_names
from hf_posenc.checkpoints.model_name import HELD_OUT
from hf_posenc.core.files.atomic import write_json
from hf_posenc.core.files.json_file import read_object
from hf_posenc.core.settings import check_fields
from hf_posenc.errors import CheckpointMismatch, PosEncError, shown
from hf_posenc.texts import Document, HubDataset, TextSource
from hf_posenc.texts.document import TEXT
from hf_posenc.training.config import Count, Lengths
from hf_posenc.training.corpus import Corpus, tokenise
from hf_posenc.training.dataset import HeldOutWindows
from hf_posenc.training.rows import tail

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedTokenizerBase

CHARACTERS = 8
"""Characters at the end of a text that are tokenised per held-out token: twice the average of most texts."""


@dataclass(frozen=True)
class HeldOut:
    """The held-out text of a run.

    Attributes:
        tokens: number of tokens at the end of the texts that were held out.
        digest: digest of these tokens, in hexadecimal.
        lengths: measured lengths, in tokens.
        windows: number of windows at each length.
        scored: tokens at the end of each window that are scored.
        texts: full paths of files and folders, and ``hub:NAME:SPLIT``; empty if documents have no names.
        field: column of a record that holds its text.
    """

    tokens: Count
    digest: str
    lengths: Lengths
    windows: Count
    scored: Count
    texts: list[str]
    field: str = TEXT

    def __post_init__(self) -> None:
        check_fields(self, CheckpointMismatch)

    @classmethod
    def of(cls, source: Any, windows: Mapping[str, HeldOutWindows] | None) -> HeldOut | None:
        """Build the record of windows cut from the end of ``source``; None without windows."""
        if windows is None:
            return None
        datasets = list(windows.values())
        texts = source if isinstance(source, TextSource) else TextSource(())
        have_names = all(isinstance(part, (Path, HubDataset)) for part in texts.parts)
        names = [str(part.expanduser().resolve() if isinstance(part, Path) else part) for part in texts.parts]
        tokens, lengths = datasets[0].tokens, tuple(dataset.length for dataset in datasets)
        return cls(
            len(tokens), digest_of(tokens), lengths, len(datasets[0]), datasets[0].scored,
            names if have_names else [], texts.field,
        )  # fmt: skip

    @classmethod
    def of_run(cls, folder: Path) -> HeldOut:
        """Read the record from the folder of a run.

        Raises:
            CheckpointMismatch: the record cannot be read.
        """
        try:
            stored = read_object(folder / HELD_OUT)
            if stored.get("separator", "") is None:  # earlier versions could split a file at a separator
                del stored["separator"]
            record = cls(**stored)
            return replace(record, texts=full_paths(record.texts, folder))
        except (OSError, ValueError, TypeError) as error:
            raise CheckpointMismatch(
                f"{folder / HELD_OUT} cannot be read: {error}. Restore it, or name the text to measure on (--text)."
            ) from error

    def write(self, folder: Path) -> None:
        """Write the record to the folder of a run."""
        write_json(folder / HELD_OUT, asdict(replace(self, texts=recorded_names(self.texts, folder))))

    def __str__(self) -> str:
        names = ", ".join(self.texts) or "documents without a name"
        return f"the last {self.tokens:,} tokens of {names}"

    def read(self, tokenizer: PreTrainedTokenizerBase, unnamed: TextSource) -> Corpus:
        """Read the held-out tokens again.

        Args:
            tokenizer: tokenizer of the run.
            unnamed: documents to try if the texts of the run have no names.

        Raises:
            CheckpointMismatch: the text cannot be read, or has other tokens now.
        """
        source = TextSource.of_names(self.texts, field=self.field) if self.texts else unnamed
        try:
            documents = last_documents(source.documents(), CHARACTERS * self.tokens)
            end = tail(tokenise(tokenizer, documents), self.tokens)
            if digest_of(end.tokens) != self.digest:
                end = tail(tokenise(tokenizer, source.documents()), self.tokens)
        except PosEncError as error:
            raise CheckpointMismatch(
                f"The run held out {self}, which cannot be read: {error} Restore that text, or name "
                "another to measure on (--text)."
            ) from error
        if digest_of(end.tokens) != self.digest:
            raise CheckpointMismatch(
                f"The held-out text of the run, {self}, has changed: the digest of its tokens is "
                f"{shown(digest_of(end.tokens))} and was {shown(self.digest)}. Restore that text, or name "
                "another to measure on (--text)."
            )
        return end


def last_documents(documents: Iterable[Document], characters: int) -> deque[Document]:
    """Return the last documents, with ``characters`` characters or more if there are; only their ends are kept."""
    last: deque[Document] = deque()
    size = 0
    for document in documents:
        last.append(replace(document, content=document.content[-characters:]))
        size += len(last[-1].content)
        while size - len(last[0].content) >= characters:
            size -= len(last.popleft().content)
    return last


def digest_of(tokens: Tensor) -> str:
    """Return the digest of tokens ``[token]``, in hexadecimal."""
    return hashlib.blake2b(tokens.to(torch.int32).numpy().tobytes(), digest_size=16).hexdigest()

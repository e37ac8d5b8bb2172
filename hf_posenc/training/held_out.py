"""What a run was measured on, kept in its folder: the texts by name, the digest of their tokens, and the windows.

The text is not copied. It is read again, and the tokens at its end must be those that were measured. Its end is
tokenised first, and the whole of it only where that gives other tokens.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from hf_posenc.checkpoints.held_out_texts import found_from, names_for
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
"""Characters at the end of a text that are tokenised for each token that was held out: twice those of most texts."""


@dataclass(frozen=True)
class HeldOut:
    """The held-out text of a run.

    Attributes:
        tokens: how many at the end of the texts were held out.
        digest: of them, in hexadecimal.
        lengths: that were measured.
        windows: at each length.
        scored: tokens at the end of each window that are scored.
        texts: files and folders by their full names, and ``hub:NAME:SPLIT``; empty where documents have no names.
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
    def of(cls, source: Any, windows: Mapping[str, Any] | None) -> HeldOut | None:
        """The record of windows that were cut from the end of texts; None where rows of token ids were given."""
        every = list((windows or {}).values())
        if not every or not all(isinstance(one, HeldOutWindows) for one in every):
            return None
        known = source if isinstance(source, TextSource) else TextSource(())
        named = all(isinstance(part, (Path, HubDataset)) for part in known.parts)
        names = [str(part.expanduser().resolve() if isinstance(part, Path) else part) for part in known.parts]
        tokens, lengths = every[0].tokens, tuple(one.length for one in every)
        return cls(
            len(tokens), digest_of(tokens), lengths, len(every[0]), every[0].scored, names if named else [],
            known.field,
        )  # fmt: skip

    @classmethod
    def of_run(cls, folder: Path) -> HeldOut:
        """The record in the folder of a run.

        Raises:
            CheckpointMismatch: It cannot be read.
        """
        try:
            stored = read_object(folder / HELD_OUT)
            if stored.get("separator", "") is None:  # of an earlier version, where it could divide a file
                del stored["separator"]
            record = cls(**stored)
            return replace(record, texts=found_from(record.texts, folder))
        except (OSError, ValueError, TypeError) as error:
            raise CheckpointMismatch(
                f"{folder / HELD_OUT} cannot be read: {error}. Restore it, or name the text to measure on (--text)."
            ) from error

    def write(self, folder: Path) -> None:
        """Keep the record in the folder of a run."""
        write_json(folder / HELD_OUT, asdict(replace(self, texts=names_for(self.texts, folder))))

    def __str__(self) -> str:
        names = ", ".join(self.texts) or "documents without a name"
        return f"the last {self.tokens:,} tokens of {names}"

    def read(self, tokenizer: PreTrainedTokenizerBase, unnamed: TextSource) -> Corpus:
        """The held-out tokens, read again.

        Args:
            tokenizer: of the run.
            unnamed: documents that are tried where those of the run have no names.

        Raises:
            CheckpointMismatch: The text is gone, or has other tokens now.
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
    """The documents at the end of a text, with that many characters or all; the first may lack its beginning."""
    kept: deque[Document] = deque()
    size = 0
    for document in documents:
        kept.append(replace(document, content=document.content[-characters:]))
        size += len(kept[-1].content)
        while size - len(kept[0].content) >= characters:
            size -= len(kept.popleft().content)
    return kept


def digest_of(tokens: Tensor) -> str:
    """Digest of tokens ``[token]``."""
    return hashlib.blake2b(tokens.to(torch.int32).numpy().tobytes(), digest_size=16).hexdigest()

"""Hold out the end of the training text, where no other text is named to measure on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from hf_posenc.errors import LengthContradiction
from hf_posenc.texts import TextSource
from hf_posenc.training.corpus import Corpus

if TYPE_CHECKING:
    from hf_posenc.texts import TextPart

SHARE, MOST = 0.05, 0.25
"""Of the tokens of a text: what is held out, and what may be where the windows to measure on take more."""


@dataclass(frozen=True)
class HeldOutSplit:
    """Measure on the end of the training text: its last 5 %, or as many tokens as the windows take, at most a quarter.

    Attributes:
        otherwise: documents to measure on where the text is too short for that, or is not read before training; without
            any, such a text is refused.
    """

    otherwise: TextSource | Sequence[TextPart] | None = None


def end_of(corpus: Corpus, needed: int) -> Corpus | None:
    """The tokens to hold out; None where ``needed`` are more than a quarter of all."""
    tokens = len(corpus.tokens)
    if needed > MOST * tokens:
        return None
    border = tokens - max(needed, round(SHARE * tokens))
    starts = corpus.starts[corpus.starts > border] - border
    return replace(corpus, tokens=corpus.tokens[border:], starts=torch.cat((torch.zeros(1, dtype=torch.long), starts)))


def without_end(corpus: Corpus, end: Corpus) -> Corpus:
    """The tokens before those that are held out; a document across the border is cut in two."""
    border = len(corpus.tokens) - len(end.tokens)
    return replace(corpus, tokens=corpus.tokens[:border], starts=corpus.starts[corpus.starts < border])


def other_text(held_out: HeldOutSplit) -> TextSource:
    """The documents to measure on where the end of the text cannot be held out.

    Raises:
        LengthContradiction: there are none.
    """
    if held_out.otherwise is None:
        raise LengthContradiction(
            "The end of this text cannot be held out: it is too short for the lengths to measure, or is not read "
            "before training. Pass held-out documents, or more text."
        )
    return TextSource.of_texts("held_out", held_out.otherwise)

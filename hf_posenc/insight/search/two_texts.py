"""The two texts of a search: one to choose on, and one that is held out until the choice is made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hf_posenc.errors import BadComparison
from hf_posenc.eval.comparison.identity import digest_of
from hf_posenc.eval.comparison.tune import check_apart, shared_by
from hf_posenc.eval.errors import TextTooShort
from hf_posenc.eval.report.settings import names_of
from hf_posenc.eval.texts.measured_text import MeasuredText, TextToMeasure, measured_text
from hf_posenc.eval.texts.sampling import SHIFTS, room_of
from hf_posenc.eval.texts.windows import tokenized_documents
from hf_posenc.insight.search.plan import FEWEST
from hf_posenc.texts import Document, rendered

SET_ASIDE = 1 / 3
"""Share of a single text that is set aside for the held-out windows."""


def two_texts(
    text: TextToMeasure, eval_text: TextToMeasure, tokenizer: Any, **reading: Any
) -> tuple[MeasuredText, MeasuredText, str]:
    """The text to choose on, the held-out text, and what the second is, in words.

    Args:
        text, eval_text: as `hf_posenc.eval.texts.measured_text.measured_text` takes them; without the second, the last
            third of the first is set aside.
        tokenizer: writes out conversations.
        **reading: ``field`` and ``separator``.

    Raises:
        BadComparison: the texts, or the parts of the only one, share a document or passages.
        UnreadableDocuments: one cannot be read.
        TextTooShort: one is empty.
    """
    own = measured_text(text, **({} if text is None and eval_text is not None else reading))
    if eval_text is None:
        first, last = parted(own, tokenizer)
        if what := shared_by(last, first):
            raise BadComparison(
                f"The last third of {names_of(own.label)} shares {what} with the rest. The choice would be judged on "
                "what it was made on; pass another text with --eval-text."
            )
        return first, last, "the last third of the same text, set aside"
    held_out = measured_text(eval_text, **reading)
    check_apart(held_out, own, option="--eval-text")
    return own, held_out, "another text"


def parted(text: MeasuredText, tokenizer: Any) -> tuple[MeasuredText, MeasuredText]:
    """The first two thirds of a text by characters, and the last third; a document across the border is cut in two."""
    contents = [(document.name, rendered(document, tokenizer)) for document in text.documents]
    left = round((1 - SET_ASIDE) * sum(len(content) for _, content in contents))
    first, last = [], []
    for name, content in contents:
        cut = min(max(left, 0), len(content))
        left -= len(content)
        if 0 < cut < len(content):
            cut = content.find("\n", cut) + 1 or cut
        first += [Document(name, content[:cut])] if content[:cut] else []
        last += [Document(name, content[cut:])] if content[cut:] else []
    return part_of(text, first, "its first two thirds"), part_of(text, last, "its last third")


def part_of(text: MeasuredText, documents: Sequence[Document], which: str) -> MeasuredText:
    """Some documents of a text, with a digest of their own."""
    digest = digest_of("\0".join(str(document.content) for document in documents))
    return MeasuredText(tuple(documents), f"{names_of(text.label)} ({which})", digest)


def room_of_both(
    own: MeasuredText, held_out: MeasuredText, tokenizer: Any, longest: int, scored: int
) -> tuple[int, int]:
    """How many windows each of the two texts has room for.

    Raises:
        TextTooShort: fewer than are needed.
    """
    return (
        windows_in(own, "first", tokenizer, longest, scored),
        windows_in(held_out, "held-out", tokenizer, longest, scored),
    )


def windows_in(text: MeasuredText, which: str, tokenizer: Any, longest: int, scored: int) -> int:
    """How many windows a text has room for, whose scored tokens do not overlap.

    Raises:
        TextTooShort: fewer than are needed.
    """
    sources = tokenized_documents(tokenizer, text)
    found = sum(room_of(source, longest) // scored for source in sources)
    if found < FEWEST:
        raise TextTooShort(
            f"The {which} text, {names_of(text.label)}, has {sum(len(one.ids) for one in sources):,} "
            f"tokens, and a search needs {FEWEST} windows of {longest:,} tokens whose last {scored} do not overlap: "
            f"{longest + SHIFTS + FEWEST * scored:,} tokens in one document. Give a longer text, or a shorter target."
        )
    return found

"""Prompts of published benchmarks from local copies of their files.

    RULER          {"input": "…", "outputs": ["…"], "answer_prefix": "…"}              as its scripts write them
    BABILong       {"input": "…", "question": "…", "target": "…"}                       of its splits 0k, 1k, 2k, …
    LongBench v2   {"context", "question", "choice_A", …, "choice_D", "answer": "A"}

Hsieh et al. 2024, "RULER", arXiv:2404.06654; Kuratov et al. 2024, "BABILong", arXiv:2406.10149; Bai et al. 2024,
"LongBench v2", arXiv:2412.15204.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from hf_posenc.errors import UnreadableDocuments, shown
from hf_posenc.eval.texts.local_records import Record, texts_of

BABILONG = "{input}\n\nQuestion: {question}\nAnswer:"
LONGBENCH = (
    "Please read the following text and answer the question below.\n\n<text>\n{context}\n</text>\n\n"
    "What is the correct answer to this question: {question}\nChoices:\n(A) {choice_A}\n(B) {choice_B}\n"
    "(C) {choice_C}\n(D) {choice_D}\n\nThe correct answer is"
)
LETTERS = ("A", "B", "C", "D")
PIECE = re.compile(r"\S+\s*|\s+")


@dataclass(frozen=True)
class Prompt:
    """A prompt, and the answers that continue it, separated by commas."""

    text: str
    answers: tuple[str, ...]


def ruler_prompt(record: Record, place: str) -> Prompt:
    """A prompt of RULER's; the opening of the answer is joined to it where a file has it apart."""
    (text, *_), answers = texts_of(record, ("input",), place), texts_of(record, ("outputs", "output"), place)
    prefix = str(record.get("answer_prefix") or record.get("gen_prefix") or "").strip()
    text = text.rstrip()
    return Prompt(text if not prefix or text.endswith(prefix) else f"{text} {prefix}", answers)


def babilong_prompt(record: Record, place: str) -> Prompt:
    """A prompt of BABILong's: text, question, and the opening of the answer."""
    (text, *_), (question, *_) = texts_of(record, ("input",), place), texts_of(record, ("question",), place)
    written = BABILONG.format(input=text.strip(), question=question.strip())
    return Prompt(written, texts_of(record, ("target",), place)[:1])


class LongBenchQuestion:
    """A question of LongBench v2 with four choices; of a text that is too long, the middle is left out, as published.

    Args:
        record: of the file.
        place: where it stands.

    Raises:
        UnreadableDocuments: a field is missing, or the answer is no letter.
    """

    pinned = 0
    choices = LETTERS

    def __init__(self, record: Record, place: str) -> None:
        names = ("context", "question", *(f"choice_{letter}" for letter in LETTERS))
        self.fields = {name: texts_of(record, (name,), place)[0] for name in names}
        answer = str(record.get("answer", "")).strip()
        if answer not in LETTERS:
            raise UnreadableDocuments(f"The answer in {place} is {shown(answer)}, and not A, B, C or D. Correct it.")
        self.answers = (answer,)
        self.pieces = PIECE.findall(self.fields["context"].strip())

    def prompt(self, units: int) -> str:
        """The prompt with ``units`` words of the text, half of them from its end."""
        pieces = self.pieces
        if units < len(pieces):
            pieces = [*pieces[: units - units // 2], *pieces[len(pieces) - units // 2 :]]
        return LONGBENCH.format(**(self.fields | {"context": "".join(pieces)}))

"""posenc_qa_file: questions from local files; other documents of the files fill the prompt up to the length.

    SQuAD       {"data": [{"paragraphs": [{"context", "qas": [{"question", "answers": [{"text"}]}]}]}]}
    HotpotQA    [{"question", "answer", "context": [[title, [sentence, …]], …], "supporting_facts": [[title, n], …]}]
    plain       {"context": "…", "question": "…", "answers": ["…"]}          one record a line

``depth`` is the depth of the first document that the question needs; a second one, as in HotpotQA, has a random depth.

Rajpurkar et al. 2016, arXiv:1606.05250; Yang et al. 2018, arXiv:1809.09600; as tasks of any length: Hsieh et al. 2024,
"RULER", arXiv:2404.06654, section 3.
"""

from __future__ import annotations

import random
import re
import string
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar

from annotated_types import MinLen
from lm_eval.api.metrics import mean
from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from hf_posenc.errors import UnreadableDocuments, shown
from hf_posenc.eval.errors import LengthTooShort
from hf_posenc.eval.tasks.base import Doc, Metric
from hf_posenc.eval.tasks.retrieval import Marks, RetrievalOptions, RetrievalTask, string_matches
from hf_posenc.eval.tasks.sweep import Count, Paths
from hf_posenc.eval.texts.haystack import Notes, depths, repeated
from hf_posenc.texts.files import FORMATS
from hf_posenc.texts.source import files_below, kind_of

DOCUMENT = "Document {number}:\n{text}"
QUESTION = "\n\nQuestion: {question}\nAnswer:"
ARTICLES = re.compile(r"\b(a|an|the)\b")


def distinct_texts(value: Any) -> Any:
    """List of distinct texts from one text, several texts, or SQuAD's ``{"text": [...]}`` and ``[{"text": …}]``."""
    value = value.get("text", value) if isinstance(value, Mapping) else value
    items = value if isinstance(value, (list, tuple)) else [value]
    return list(dict.fromkeys(item.get("text") if isinstance(item, Mapping) else item for item in items))


Text = Annotated[str, Field(pattern=r"\S")]
Texts = Annotated[tuple[Text, ...], MinLen(1), BeforeValidator(distinct_texts)]


class FileQuestion(BaseModel):
    """A question with its accepted answers, the documents that it needs, and distractors (``beside``).

    The first answer is the one that is scored by teacher forcing. Unknown fields are ignored.
    """

    model_config = ConfigDict(frozen=True, coerce_numbers_to_str=True)

    question: Text
    answers: Texts = Field(validation_alias=AliasChoices("answers", "answer"))
    needed: Texts
    beside: tuple[str, ...] = ()


def fields_of(record: Any) -> Iterator[Any]:
    """Yield the fields of a record's questions; SQuAD's questions without an answer are left out."""
    if not isinstance(record, Mapping):
        yield record  # which is refused
    elif isinstance(record.get("data"), list):
        for paragraph in (paragraph for article in record["data"] for paragraph in article["paragraphs"]):
            for asked in paragraph["qas"]:
                if asked.get("answers") and not asked.get("is_impossible"):
                    yield {**asked, "needed": paragraph["context"]}
    elif isinstance(record.get("context"), (list, Mapping)):  # HotpotQA
        texts = {title: f"{title}\n{''.join(sentences).strip()}" for title, sentences in rows(record["context"])}
        supporting = {fact[0] for fact in rows(record.get("supporting_facts") or [])}
        needed = [text for title, text in texts.items() if title in supporting]
        yield {**record, "needed": needed, "beside": [text for text in texts.values() if text not in needed]}
    else:
        yield {**record, "needed": record.get("context")}


def rows(columns: Any) -> Any:
    """Rows of HotpotQA's pairs; the copy on the Hub has columns instead, which are transposed."""
    return list(zip(*columns.values(), strict=True)) if isinstance(columns, Mapping) else columns


def questions_of(sources: Sequence[str | Path]) -> Iterator[FileQuestion]:
    """Yield every question of some files and folders."""
    if not sources:
        raise UnreadableDocuments("The task reads questions from a file, and none is named. Pass --set data=FILE.")
    for source in sources:
        path = Path(source).expanduser()
        for file in files_below(path, FORMATS) if path.is_dir() else [path]:
            if kind_of(file) not in FORMATS:
                raise UnreadableDocuments(
                    f"The file {shown(str(file))} is not a file of records. Pass one that ends in {', '.join(FORMATS)}."
                )
            for place, record in FORMATS[kind_of(file)](file):
                try:
                    yield from [FileQuestion.model_validate(fields) for fields in fields_of(record)]
                except ValueError as error:  # of pydantic, or of a column that is shorter than another
                    field, rule = "", str(error)
                    if isinstance(error, ValidationError):
                        first = error.errors(include_url=False)[0]
                        field, rule = ".".join(map(str, first["loc"])), first["msg"].removeprefix("Value error, ")
                    raise UnreadableDocuments(
                        f"{place} cannot be used, because of {field or 'its form'}: {rule}. Correct {shown(record)}."
                    ) from None


class DocumentQuestion(Notes):
    """One question of a file, with any number of documents."""

    intro = "Answer the question from these documents, in a few words.\n\n"

    def __init__(self, seed: str, depth: float, asked: FileQuestion, pool: Sequence[str]) -> None:
        rng = random.Random(seed)
        self.question, self.answers = QUESTION.format(question=asked.question.strip()), asked.answers[:1]
        self.needles = list(zip([depth, *depths(rng, len(asked.needed) - 1)], asked.needed, strict=True))
        others = [text for text in pool if text not in {*asked.needed, *asked.beside}]
        order = [*rng.sample(asked.beside, len(asked.beside)), *rng.sample(others, len(others))]
        self.alone, self.filler = not order, repeated(order)

    def written(self, texts: Sequence[str]) -> str:
        """Number and join the documents."""
        return "\n\n".join(DOCUMENT.format(number=number, text=text) for number, text in enumerate(texts, 1))


class FileQuestionsTask(RetrievalTask):
    """A question of a file, with its documents among others.

    With ``scoring: forced``, the first answer is scored. With ``generate``, ``match`` is whether any accepted answer
    occurs in the text, and ``f1`` is SQuAD's word overlap with the most similar answer.
    """

    Options = RetrievalOptions.plus(data=(Paths, ()), question_tokens=(Count | None, None))
    generated: ClassVar[dict[str, Metric]] = {"match": (mean, True), "f1": (mean, True)}

    @classmethod
    def check(cls, options: Mapping[str, Any]) -> None:
        """Refuse wrong options, and files without readable questions."""
        parsed: Any = cls.Options.of(options)
        for _ in questions_of(parsed.data):
            pass

    @cached_property
    def questions(self) -> list[FileQuestion]:
        """The questions of all files."""
        questions = list(questions_of(self.options.data))
        if not questions:
            raise UnreadableDocuments("There is no question with an answer in the data. Pass another file.")
        return questions

    @cached_property
    def pool(self) -> tuple[str, ...]:
        """Every document of the files, once."""
        return tuple(dict.fromkeys(text for asked in self.questions for text in (*asked.needed, *asked.beside)))

    def documents(self) -> list[Doc]:
        """``keys`` questions in random order that have at most ``question_tokens`` tokens with their documents."""
        order = random.Random(f"{self.name}-{self.sweep.seed}").sample(range(len(self.questions)), len(self.questions))
        most, sizes = self.options.question_tokens or self.sweep.lengths[0], []
        documents: list[Doc] = []
        for number in order:
            if len(documents) == self.sweep.keys:
                break
            asked = self.questions[number]
            shortest = self.count(DocumentQuestion("", 0.0, asked, ()).prompt(0))
            sizes.append(shortest + 2 * max(self.count(f" {answer}") for answer in asked.answers))
            if sizes[-1] <= most:
                documents.append(self.document(f"{self.name}-{self.sweep.seed}-{number}") | {"question": number})
        if not documents:
            raise LengthTooShort(
                f"None of {len(order)} questions fits {most} tokens with its documents; the shortest takes "
                f"{min(sizes)}. Ask for longer lengths."
            )
        used = {"read": len(order), "tried": len(sizes), "used": len(documents)}
        self.config.metadata |= {"questions": used, "question_tokens": most}
        return documents

    def exercise(self, seed: str, depth: float) -> DocumentQuestion:
        """The question whose number is at the end of the seed, with its first document at ``depth``."""
        exercise = DocumentQuestion(seed, depth, self.questions[int(seed.rpartition("-")[2])], self.pool)
        if exercise.alone:
            raise UnreadableDocuments(
                "The data has no document besides those of one question, and nothing to make a prompt longer with. "
                "Add records."
            )
        return exercise

    def marks(self, doc: Doc, results: Sequence[Any]) -> Marks:
        """Metrics of one cell; a generated text is compared with every accepted answer."""
        if not self.generates:
            return super().marks(doc, results)
        accepted, text = self.questions[doc["question"]].answers, results[0].strip().partition("\n")[0]
        return {
            "match": [float(any(string_matches(text, accepted)))],
            "f1": [max(word_overlap(text, answer) for answer in accepted)],
        }


def word_overlap(text: str, answer: str) -> float:
    """SQuAD's F1: harmonic mean of the shares of words that two texts have in common."""
    text_words, answer_words = words(text), words(answer)
    common = sum((Counter(text_words) & Counter(answer_words)).values())
    return 2 * common / (len(text_words) + len(answer_words)) if common else 0.0


def words(text: str) -> list[str]:
    """Words in lower case, without articles and punctuation, as SQuAD compares them."""
    unpunctuated = "".join(character for character in text.lower() if character not in string.punctuation)
    return ARTICLES.sub(" ", unpunctuated).split()

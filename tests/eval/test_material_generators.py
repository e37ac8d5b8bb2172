"""Generators of associations, labels and rankings; filler from a text."""

from __future__ import annotations

import re

import pytest

from hf_posenc.errors import BadComparison
from hf_posenc.eval import evaluate
from hf_posenc.eval.tasks.choice import WORDS, Classification, examples
from hf_posenc.eval.tasks.ranking import Ranking, generated
from hf_posenc.eval.texts.haystack import MOST_WORDS, sentences_of
from hf_posenc.eval.texts.needles import ASSOCIATIONS, BEEN, LIVES, WORKS, Association

SMALL_WORDS = {"the", "to", "of", "is", "a", "all", "at", "has", "been", "which", "right", "week", "answer", "person"}
BOOK = "The first one. Is it the second? “Third!” Fourth of 3.5 parts.\n\nA heading without an end\n\n" + "long " * 90


def content_words(text: str) -> set[str]:
    """Words that carry meaning, by their first five letters."""
    return {word[:5] for word in re.findall(r"[a-z]+", text.lower()) if word not in SMALL_WORDS}


@pytest.mark.parametrize(("place", "country"), ASSOCIATIONS)
def test_needle_and_question_share_no_content_word(place: str, country: str) -> None:
    needle, question = LIVES.format(name="", place=place), BEEN.format(where=country)
    assert not content_words(needle) & content_words(question)
    assert not content_words(WORKS.format(name="", place="at home")) & content_words(question)
    assert content_words(needle) & content_words(f"Who lives beside {place}?")  # control: a literal question would


def test_only_one_person_lives_in_the_country() -> None:
    exercise = Association("seed", 0.5, distractors=15)
    homes = {
        name: place
        for place, _ in ASSOCIATIONS
        for name in exercise.choices
        if f"{name} lives right beside {place}" in exercise.prompt(3)
    }
    right = [name for name, place in homes.items() if dict(ASSOCIATIONS)[place] in exercise.question]
    assert tuple(right) == exercise.answers
    assert sorted(homes) == sorted(exercise.choices)
    assert len(set(homes.values())) == 16


def test_every_label_comes_once_a_round_and_means_one_kind() -> None:
    exercise = Classification("seed", examples("seed", sorted(WORDS), 20), 5)
    shots = [shot.split("\nlabel: ") for shot in exercise.prompt(10).split("\n\n")[1:-1]]
    assert (
        sorted(label for _, label in shots[:5]) == sorted(label for _, label in shots[5:]) == sorted(exercise.choices)
    )
    kinds = {label: kind for kind, label in exercise.labels.items()}
    for text, label in shots:
        assert {
            kind
            for kind, words in WORDS.items()
            if any(word in text.split(".")[0].replace(",", "").split() for word in words)
        } == {kinds[label]}


def test_relevance_is_how_often_a_document_names_the_subject() -> None:
    query = generated("seed", 3)
    exercise = Ranking("seed", 0.0, query)
    documents = dict(line.removeprefix("Document ").split(": ", 1) for line in exercise.prompt(6).split("\n")[1:-1])
    assert len(documents) == 9
    times = {number: text.count(query.query) for number, text in documents.items()}
    assert tuple(sorted(exercise.grades, key=lambda number: -times[number])) == exercise.answers
    assert [times[number] for number in exercise.answers] == [3, 2, 1]
    assert sum(times.values()) == 6


def test_sentences_of_a_text() -> None:
    found = sentences_of([BOOK, "另一句。第二句。"])
    assert found[:5] == (
        "The first one.",
        "Is it the second?",
        "“Third!”",
        "Fourth of 3.5 parts.",
        "A heading without an end",
    )
    assert [len(piece.split()) for piece in found[5:10]] == [MOST_WORDS] * 4 + [10]
    assert found[10:] == ("另一句。", "第二句。")


@pytest.mark.parametrize(
    "task",
    ["posenc_niah_multiquery", "posenc_qa", "posenc_passkey"],
)
def test_needles_are_hidden_in_the_text(llama, tokenizer, tmp_path, task: str) -> None:
    (tmp_path / "book.txt").write_text("Zebras graze in the park. Owls sleep by day. Foxes walk home at dawn.")
    asked = {"tasks": [task], "lengths": [600], "keys": 2, "depths": [0.5], "log_samples": True}
    samples = evaluate(llama, tokenizer, text=tmp_path / "book.txt", **asked).raw["samples"][task]
    for sample in samples:
        assert sample["doc"]["prompts"][0].count("Owls sleep by day.") >= 2  # repeated, as the text is short
    plain = evaluate(llama, tokenizer, **asked).raw["samples"][task]
    assert all("Owls" not in sample["doc"]["prompts"][0] for sample in plain)


def test_a_text_that_the_haystack_leaves_out_is_refused(llama, tokenizer, tmp_path) -> None:
    (tmp_path / "book.txt").write_text(BOOK)
    asked = {"tasks": ["posenc_niah_single"], "lengths": [500], "keys": 1, "text": tmp_path / "book.txt"}
    with pytest.raises(BadComparison, match="one of the tasks reads the text"):
        evaluate(llama, tokenizer, options={"haystack": "prose"}, **asked)
    both = {**asked, "tasks": ["posenc_niah_single", "posenc_vt"]}
    with pytest.raises(BadComparison):
        evaluate(llama, tokenizer, options={"haystack": "repeat"}, **both)

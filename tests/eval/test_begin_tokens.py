"""A length counts every token that the model gets, with the begin token of the tokenizer.

A model that was trained with a begin token falls apart without one, and a window that forgets to count it is one token
longer than the length it is reported under. Read off the rows that reach the model, whatever task made them.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from tokenizers import processors
from transformers import PreTrainedTokenizerFast

from hf_posenc.eval import evaluate
from hf_posenc.eval.lm.masked_lm import PosEncMLM
from hf_posenc.eval.lm.spans import (
    closing_of,
    frame_of,
    front_of,
    opened,
)
from hf_posenc.eval.texts.stdlib_source import module_text

from .conftest import TRAINED
from .test_parity import requests

LENGTH = 2 * TRAINED
EXACT = {"posenc_token_nll", "posenc_sliding_ppl", "posenc_docs"}  # made of tokens; the others of whole texts
LOSSES = EXACT | {"posenc_ppl"}  # the others hide needles in filler of their own, whose sentences are short
TASKS: dict[str, dict[str, Any]] = {
    "posenc_ppl": {}, "posenc_passkey": {}, "posenc_token_nll": {}, "posenc_docs": {}, "posenc_niah_single": {},
    "posenc_sliding_ppl": {"stride": 32, "stretch": 80},
}  # fmt: skip


def framing(tokenizer: Any, before: int, behind: int = 0) -> PreTrainedTokenizerFast:
    """The tokenizer with so many ``<end>`` before every text, and so many ``<sep>`` behind it."""
    backend = copy.deepcopy(tokenizer.backend_tokenizer)
    single = " ".join(["<end>"] * before + ["$A"] + ["<sep>"] * behind)
    pieces = [(name, backend.token_to_id(name)) for name in ("<end>", "<sep>")]
    backend.post_processor = processors.TemplateProcessing(single=single, special_tokens=pieces)
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<end>", eos_token="<end>", pad_token="<pad>")


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(module_text("bisect") * 3, encoding="utf-8")
    return path


@pytest.fixture
def rows(llama) -> list[list[int]]:
    """What the model reads."""
    seen: list[list[int]] = []

    def note(module: Any, args: Any, options: dict[str, Any]) -> None:
        seen.extend(options["input_ids"].tolist())

    llama.base_model.register_forward_pre_hook(note, with_kwargs=True)
    return seen


@pytest.mark.parametrize("before", [0, 2])
@pytest.mark.parametrize("task", TASKS)
def test_inputs_have_the_requested_length(task: str, before: int, llama, tokenizer, text, rows) -> None:
    options = TASKS[task] | ({"docs": [str(text)]} if task == "posenc_docs" else {})
    evaluate(
        llama, framing(tokenizer, before), tasks=[task], lengths=[LENGTH], samples=2, scored=16, keys=1, depths=[0.5],
        text=text if task in LOSSES else None, options=options,
    )  # fmt: skip
    read = [row for row in rows if len(row) > 8]  # the last scored token is never read
    assert read
    for row in read:
        assert row[:before] == [0] * before
        assert row[before] != 0
        assert len(row) + 1 <= LENGTH
    longest = max(len(row) + 1 for row in read)
    assert longest == LENGTH if task in EXACT else longest > LENGTH - 40


def test_windows_slide_behind_a_begin_token(llama, tokenizer, text) -> None:
    """Each window is begin token and ``length − 1`` tokens of text; the numbers are those of plain forwards."""
    evaluation = evaluate(
        llama, framing(tokenizer, 1), tasks=["posenc_sliding_ppl"], lengths=[64], longest=LENGTH, samples=2, text=text,
        options={"stride": 32, "stretch": 80}, log_samples=True,
    )  # fmt: skip
    found = []
    for sample in evaluation.raw["samples"]["posenc_sliding_ppl"]:
        (_, front, ids, _), total, first = sample["arguments"][0], 0.0, LENGTH - 32
        assert front == [0]
        for scored in range(first, first + 80, 32):
            end = min(first + 80, scored + 32)
            row = torch.tensor([[0, *ids[end - 63 : end]]])
            logits = llama(row).logits[0, :-1].double()[-(end - scored) :]
            total += torch.nn.functional.cross_entropy(logits, row[0, -(end - scored) :], reduction="sum").item()
        found.append(total / 80)
    value = next(r.value for r in evaluation.rows if r.metric == "nll")
    assert value == pytest.approx(sum(found) / 2, rel=1e-5)


@pytest.mark.parametrize(("before", "behind"), [(0, 0), (1, 0), (0, 1), (1, 1), (3, 2)])
def test_special_tokens_around_a_text(before: int, behind: int, tokenizer) -> None:
    made = framing(tokenizer, before, behind)
    end, sep = (tokenizer.convert_tokens_to_ids(name) for name in ("<end>", "<sep>"))
    assert frame_of(made) == ([end] * before, [sep] * behind)
    assert (front_of(made), closing_of(made)) == frame_of(made)
    inside = tokenizer("The sky is blue.")["input_ids"]
    assert opened(made, "The sky is blue.") == [end] * before + inside
    assert opened(made, "") == [end] * before
    assert opened(made, "a") == [end] * before + tokenizer("a")["input_ids"]


def test_a_masked_text_is_between_its_special_tokens(bert, framed_tokenizer) -> None:
    read: list[list[int]] = []
    bert.base_model.register_forward_pre_hook(
        lambda module, args, options: read.extend(options["input_ids"].tolist()), with_kwargs=True
    )
    PosEncMLM(bert, tokenizer=framed_tokenizer).loglikelihood(requests("loglikelihood", [("The sky is", " blue.")]))
    hidden = framed_tokenizer("The sky is blue.")["input_ids"]
    (row,) = read
    assert (row[0], row[-1], len(row)) == (hidden[0], hidden[-1], len(hidden))
    assert (hidden[0], hidden[-1]) == (framed_tokenizer.cls_token_id, framed_tokenizer.sep_token_id)


@pytest.mark.parametrize("task", ["posenc_passkey", "posenc_niah_single", "posenc_ppl"])
def test_no_prompt_is_longer_than_its_length(task: str, llama, tokenizer, text) -> None:
    """Whole sentences leave room to spare at most lengths, not at all of 24 in a row."""
    made, lengths = framing(tokenizer, 2), list(range(240, 264))
    evaluation = evaluate(
        llama, made, tasks=[task], lengths=lengths, samples=1, scored=16, keys=1, depths=[0.5],
        text=text if task in LOSSES else None, log_samples=True,
    )  # fmt: skip
    (sample,) = evaluation.raw["samples"][task]
    read = [len(made(prompt + answer)["input_ids"]) for prompt, answer in sample["arguments"]]
    assert len(read) == len(lengths)
    assert all(tokens <= length for tokens, length in zip(read, lengths, strict=True))
    assert max(tokens - length for tokens, length in zip(read, lengths, strict=True)) >= -1  # and hardly any is wasted

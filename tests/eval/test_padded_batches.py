"""Batches of unlike lengths, and answers in a row: fewer forward passes, and the numbers of one each."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest
import torch
from lm_eval.api.instance import Instance

from hf_posenc import patch_model
from hf_posenc.eval.lm.batching import similar_lengths
from hf_posenc.eval.lm.causal_lm import PosEncLM
from hf_posenc.eval.lm.scorer import carriers

from .conftest import TRAINED

SCHEMES: dict[str | None, dict[str, Any]] = {
    None: {},
    "yarn": {"factor": 2}, "alibi": {}, "self_extend": {"factor": 2}, "sinks": {}, "t5": {}, "xpos": {},
    "fox": {}, "dynamic_ntk": {"factor": 2},
}  # fmt: skip


@pytest.fixture
def padding(monkeypatch: pytest.MonkeyPatch):
    """A switch that makes CPU batches those of a device."""

    def turn(on: bool) -> None:
        monkeypatch.setattr(PosEncLM, "pads", property(lambda self: on))

    return turn


def requests(kind: str) -> list[Instance]:
    rng = random.Random(0)
    texts = [" ".join(rng.choice(["grass", "sky", "sun", "key", "is"]) for _ in range(n)) for n in range(6, 22)]
    greedy = {"until": [], "max_gen_toks": 6, "do_sample": False}
    return [
        Instance(kind, {}, (text, greedy if kind == "generate_until" else " green."), number)
        for number, text in enumerate(texts)
    ]


def scheme_model(llama, tokenizer, scheme: str | None, options: dict[str, Any]) -> PosEncLM:
    torch.manual_seed(0)
    return PosEncLM(llama, tokenizer=tokenizer, batch_size=8, max_length=256, scheme=scheme, **options)


@pytest.mark.parametrize(("scheme", "options"), SCHEMES.items(), ids=str)
def test_scores_are_those_of_a_batch_of_one(llama, tokenizer, padding, scheme, options) -> None:
    lm = scheme_model(llama, tokenizer, scheme, options)
    assert lm.prefixes
    counts: dict[bool, list[int]] = {False: [], True: []}
    found = {}
    for on in (False, True):
        padding(on)
        handle = lm.model.register_forward_hook(lambda *_, on=on: counts[on].append(1))
        found[on] = lm.loglikelihood(requests("loglikelihood"), disable_tqdm=True)
        handle.remove()
    assert [score for score, _ in found[True]] == pytest.approx([score for score, _ in found[False]], abs=1e-4)
    assert [hit for _, hit in found[True]] == [hit for _, hit in found[False]]
    assert len(counts[True]) < len(counts[False]) / 2


@pytest.mark.parametrize(("scheme", "options"), SCHEMES.items(), ids=str)
def test_generated_texts_are_those_of_a_batch_of_one(llama, tokenizer, padding, scheme, options) -> None:
    lm = scheme_model(llama, tokenizer, scheme, options)
    found = {}
    for on in (False, True):
        padding(on)
        found[on] = lm.generate_until(requests("generate_until"), disable_tqdm=True)
    assert found[True] == found[False]


def test_a_model_that_sees_the_length_is_never_padded(llama, tokenizer, padding) -> None:
    config = copy.deepcopy(llama.config)
    config.rope_parameters = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}
    native = type(llama)(config).eval()
    native.load_state_dict(llama.state_dict())
    lm = scheme_model(native, tokenizer, None, {})
    lm._device = torch.device("cuda")
    assert not lm.prefixes
    assert not lm.pads
    lm._device = torch.device("cpu")
    short = [Instance("loglikelihood", {}, (text, " green."), 0) for text in ("grass " * 180, "grass " * 200)]
    lm.max_length = 2048
    alone = [score for score, _ in lm.loglikelihood(short, disable_tqdm=True)]
    padding(True)  # control: what padding would do to it
    padded = [score for score, _ in lm.loglikelihood(short, disable_tqdm=True)]
    assert max(abs(a - b) for a, b in zip(alone, padded, strict=True)) > 1e-3


def test_lengths_are_mixed_where_they_are_alike() -> None:
    rows = {tuple(range(n)): 1 for n in (100, 90, 76, 74, 60, 10)}
    assert [[len(row) for row in batch] for batch in similar_lengths(rows, lambda length: 8)] == [
        [100, 90, 76],
        [74, 60],
        [10],
    ]
    assert [len(batch) for batch in similar_lengths(rows, lambda length: 2)] == [2, 2, 1, 1]


PROMPT = "The quick brown fox jumps over the lazy dog. Which animals are named? The animals are"
CHAIN = [(PROMPT, " fox"), (PROMPT + " fox,", " dog"), (PROMPT + " fox, dog,", " no other")]


def scored(lm: PosEncLM, pairs: list[tuple[str, str]]) -> tuple[list[tuple[float, bool]], int]:
    """Scores, and how many forward passes they took."""
    passes = []
    hook = lm.model.register_forward_hook(lambda *_: passes.append(1))
    requests = [Instance("loglikelihood", {}, pair, n, ("test", n, 1)) for n, pair in enumerate(pairs)]
    answers = lm.loglikelihood(requests, disable_tqdm=True)
    hook.remove()
    return answers, len(passes)


@pytest.mark.parametrize("order", [CHAIN, CHAIN[::-1], [CHAIN[1], CHAIN[0], CHAIN[0], CHAIN[2]]], ids=str)
def test_a_chain_takes_one_pass(llama, tokenizer, order: list[tuple[str, str]]) -> None:
    lm = PosEncLM(llama, tokenizer=tokenizer)
    together, passes = scored(lm, order)
    assert passes == 1
    for pair, (score, greedy) in zip(order, together, strict=True):
        (alone,), _ = scored(lm, [pair])
        assert score == pytest.approx(alone[0], rel=1e-5)  # float32, sums of another order
        assert greedy == alone[1]
        context, whole = (torch.tensor(tokenizer(text)["input_ids"]) for text in (pair[0], "".join(pair)))
        logits = llama(whole[None]).logits[0, len(context) - 1 : -1].double().log_softmax(-1)
        assert score == pytest.approx(logits.gather(-1, whole[len(context) :, None]).sum().item(), rel=1e-5)


def test_choices_take_one_pass_each(llama, tokenizer) -> None:
    """One begins with the other; lm-eval scores them apart, and so its numbers stay ours to the last bit."""
    lm = PosEncLM(llama, tokenizer=tokenizer)
    choices = [(PROMPT, " fox"), (PROMPT, " fox, dog"), (PROMPT, " cat")]
    together, passes = scored(lm, choices)
    assert passes == 3
    assert together == [scored(lm, [choice])[0][0] for choice in choices]


def test_length_dependent_schemes_take_one_pass_per_text(llama, tokenizer) -> None:
    patch_model(llama, "norm01", target_length=2 * TRAINED)
    _, passes = scored(PosEncLM(llama, tokenizer=tokenizer), CHAIN)
    assert passes == len(CHAIN)


def carried(*asked: tuple[tuple[int, ...], int]) -> dict[tuple[int, ...], tuple[int, ...]]:
    """The carriers of some texts, each with the number of its scored tokens."""
    return carriers({text[:-1]: [text] for text, _ in asked}, dict(asked))


def test_a_truncated_text_is_not_a_prefix() -> None:
    """Rows as they are after ``on_overflow="truncate"``: the longer one has lost its beginning."""
    assert carried(((1, 2, 3, 4), 1), ((1, 2, 3, 4, 5, 6), 1)) == {(1, 2, 3): (1, 2, 3, 4, 5)}
    assert carried(((1, 2, 3, 4), 1), ((3, 4, 5, 6), 1)) == {}


def test_the_longest_request_answers_its_prefixes() -> None:
    assert carried(*(((1,) * n, 1) for n in (2, 4, 6))) == {(1,): (1,) * 5, (1,) * 3: (1,) * 5}
    assert carried(((1, 2, 3), 1), ((2, 2, 3), 1)) == {}

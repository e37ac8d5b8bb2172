"""Answers in a row are scored in one pass, with the numbers of a pass each."""

from __future__ import annotations

import pytest
import torch
from lm_eval.api.instance import Instance

from hf_posenc import patch_model
from hf_posenc.eval.lm.causal_lm import PosEncLM
from hf_posenc.eval.lm.scorer import carriers

from .conftest import TRAINED

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

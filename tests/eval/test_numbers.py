"""Where a number comes from: each step between a model's logits and a row of a report, against its definition."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from hf_posenc import patch_model
from hf_posenc.eval.lm.causal_lm import PosEncLM
from hf_posenc.eval.lm.log_probs import token_scores
from hf_posenc.eval.results.rows import rows_of
from hf_posenc.eval.tasks.base import perplexity

from .conftest import TRAINED


def exact(model: Any, ids: list[int], scored: int) -> torch.Tensor:
    """Log-probabilities of all words at the last ``scored`` places, float64."""
    return model(torch.tensor([ids])).logits[0, -scored - 1 : -1].double().log_softmax(-1)


@torch.no_grad()
def test_greedy_means_every_token(llama, tokenizer) -> None:
    """Targets that a greedy decoder writes, and the same with one token that it does not, at each place."""
    context = "def bisect(a, x):\n    lo = 0"
    ids = tokenizer(context)["input_ids"]
    written = llama.generate(
        torch.tensor([ids]), max_new_tokens=3, min_new_tokens=3, do_sample=False, attention_mask=torch.ones(1, len(ids))
    )[0, len(ids) :].tolist()  # fmt: skip
    lm = PosEncLM(llama, tokenizer=tokenizer)
    ((score, greedy),) = lm._loglikelihood_tokens([(None, ids, written)])
    assert greedy
    assert score == pytest.approx(exact(llama, ids + written, 3)[range(3), written].sum().item(), rel=1e-5)
    for index in range(3):
        other = [*written[:index], (written[index] + 1) % 512, *written[index + 1 :]]
        ((score, greedy),) = lm._loglikelihood_tokens([(None, ids, other)])
        assert not greedy
        assert score == pytest.approx(exact(llama, ids + other, 3)[range(3), other].sum().item(), rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("held", [1 << 20, 3 * 50])
def test_scores_are_in_float32_whatever_the_logits_are(dtype: torch.dtype, held: int, monkeypatch) -> None:
    monkeypatch.setattr("hf_posenc.eval.lm.log_probs.HELD", held)
    logits = (5 * torch.randn(10, 50, generator=torch.Generator().manual_seed(0))).to(dtype)
    tokens = torch.arange(10)
    tokens[3] = logits[3].argmax()
    scores, greedy = token_scores(logits, tokens)
    expected = logits.double().log_softmax(-1)[range(10), tokens]
    assert scores.dtype == torch.float32
    assert (scores.double() - expected).abs().max() < 1e-5
    assert torch.equal(greedy, logits.argmax(-1) == tokens)
    rounded = logits.log_softmax(-1)[range(10), tokens].double()
    assert dtype == torch.float32 or (rounded - expected).abs().max() > 1e-4  # control
    head = torch.nn.Linear(50, 60, dtype=torch.float32)
    scores, _ = token_scores(logits.float(), tokens, head)
    expected = head(logits.float()).double().log_softmax(-1)[range(10), tokens]
    assert (scores.double() - expected).abs().max() < 1e-5


def test_perplexity_is_of_the_mean_loss() -> None:
    """And not a mean of perplexities, which one bad document rules."""
    assert perplexity([1.0, 3.0]) == pytest.approx(math.exp(2.0))
    results = {
        "results": {"t": {"nll_L8,none": 2.0, "nll_L8_stderr,none": 0.5, "ppl_L8,none": math.exp(2.0)}},
        "n-samples": {"t": {"original": 9, "effective": 3}},
    }
    loss, found = rows_of(results, scheme="s", model="m")
    assert (loss.stderr, loss.n, loss.length) == (0.5, 3, 8)
    assert found.stderr == pytest.approx(math.exp(2.0) * 0.5)  # d exp(x) = exp(x) dx
    found = rows_of({**results, "results": {"t": {"ppl_L8,none": 7.0}}}, scheme="s", model="m")
    assert [row.stderr for row in found] == [None]


def test_random_positions_depend_on_the_sequence_alone(llama, tokenizer) -> None:
    """Two texts that drew the same positions would be one draw counted twice."""
    patch_model(llama, "randpos", target_length=2 * TRAINED, test="random")
    lm = PosEncLM(llama, tokenizer=tokenizer)

    def drawn(row: tuple[int, ...]) -> list[float]:
        with lm.seeded([row]):
            return torch.rand(3).tolist()

    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    assert drawn((1, 2, 3)) == drawn((1, 2, 3))
    assert len({tuple(drawn(row)) for row in ((1, 2, 3), (1, 2, 4), (3, 2, 1), (1, 2))}) == 4
    assert torch.equal(torch.rand(3), expected)  # outside, as if none had been drawn

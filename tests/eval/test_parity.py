"""Without a scheme, our model type gives the numbers of lm-eval's own ``hf``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM

from hf_posenc import patch_model
from hf_posenc.eval.lm.causal_lm import PosEncLM

PAIRS = [
    ("def bisect(a, x):\n    lo = 0", "\n    hi = len(a)"),
    ("def bisect(a, x):\n    lo = 0", "\n"),
    ("def bisect(a, x):\n    lo = 0", "x"),  # the same context: one forward for both
    ("", "an empty context starts from the end token"),
    ("trailing blanks move to the target  ", "so"),
    ("The grass is green. " * 12, "The sky is blue."),
]


def requests(kind: str, arguments: Sequence[tuple[Any, ...]]) -> list[Instance]:
    return [Instance(request_type=kind, doc={}, arguments=a, idx=0) for a in arguments]


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_loglikelihood_is_that_of_hf(family: str, tokenizer, request) -> None:
    """To the last bit: texts as short as these are scored by the very same calls."""
    model = request.getfixturevalue(family)
    stock = HFLM(model, tokenizer=tokenizer).loglikelihood(requests("loglikelihood", PAIRS))
    assert PosEncLM(model, tokenizer=tokenizer).loglikelihood(requests("loglikelihood", PAIRS)) == stock


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_few_scored_tokens_are_those_of_hf(family: str, tokenizer, request, monkeypatch) -> None:
    """The path of long texts, where the head runs on scored positions alone: another order of the same sums."""
    monkeypatch.setattr("hf_posenc.eval.lm.log_probs.WHOLE", 0)
    model = request.getfixturevalue(family)
    stock = HFLM(model, tokenizer=tokenizer).loglikelihood(requests("loglikelihood", PAIRS))
    for held, batch_size in ((1 << 22, 1), (1 << 22, 4), (1, 4)):
        monkeypatch.setattr("hf_posenc.eval.lm.log_probs.HELD", held)
        lm = PosEncLM(model, tokenizer=tokenizer, batch_size=batch_size)
        ours = lm.loglikelihood(requests("loglikelihood", PAIRS))
        assert [greedy for _, greedy in ours] == [greedy for _, greedy in stock]
        assert [score for score, _ in ours] == pytest.approx([score for score, _ in stock], rel=1e-6, abs=0)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_rolling_is_that_of_hf(family: str, tokenizer, request) -> None:
    model = request.getfixturevalue(family)
    texts = requests("loglikelihood_rolling", [("def insort(a, x):\n    lo = 0",), ("The sky is blue. " * 3,), ("x",)])
    stock = HFLM(model, tokenizer=tokenizer).loglikelihood_rolling(texts)
    assert PosEncLM(model, tokenizer=tokenizer).loglikelihood_rolling(texts) == stock


@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.parametrize("batch_size", [1, 3])
def test_generation_is_that_of_hf(family: str, batch_size: int, tokenizer, request) -> None:
    """Greedy and, from one seed, sampled; stop strings and repeated prompts included."""
    model, until = request.getfixturevalue(family), {"until": ["\n", "e"], "max_gen_toks": 8}
    prompts = [("The sky is", until), ("def insort(a, x):", until), ("The sky is", until), ("The sun is", until)]
    stock = HFLM(model, tokenizer=tokenizer).generate_until(requests("generate_until", prompts))
    lm = PosEncLM(model, tokenizer=tokenizer, batch_size=batch_size)
    assert lm.generate_until(requests("generate_until", prompts)) == stock
    sampled = requests("generate_until", [("The sky is", until | {"do_sample": True, "temperature": 0.7})])
    torch.manual_seed(0)
    stock = HFLM(model, tokenizer=tokenizer).generate_until(sampled)
    torch.manual_seed(0)
    assert lm.generate_until(sampled) == stock


def test_a_scheme_moves_the_numbers(llama, tokenizer) -> None:
    """Control: the parity above is not that of a constant."""
    plain = PosEncLM(llama, tokenizer=tokenizer).loglikelihood(requests("loglikelihood", PAIRS))
    patched = PosEncLM(patch_model(llama, "yarn", factor=4), tokenizer=tokenizer)
    moved = patched.loglikelihood(requests("loglikelihood", PAIRS))
    assert all(abs(a - b) > 1e-3 for (a, _), (b, _) in zip(plain, moved, strict=True))


def test_evaluate_then_train_in_one_process(llama, tokenizer) -> None:
    """Tables built while evaluating must not be inference tensors, which cannot take part in training."""
    patch_model(llama, "yarn", factor=4)
    PosEncLM(llama, tokenizer=tokenizer).loglikelihood(requests("loglikelihood", PAIRS))
    ids = torch.arange(100)[None]
    llama.train()(input_ids=ids, labels=ids).loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in llama.parameters())

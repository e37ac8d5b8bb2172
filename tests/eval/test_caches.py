"""The two caches of lm-eval: responses by request, requests by task name. Both must distinguish schemes and lengths."""

from __future__ import annotations

import pytest
import torch
from lm_eval import simple_evaluate
from lm_eval.api.model import CachingLM
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

from hf_posenc import patch_model, unpatch_model
from hf_posenc.eval import TASKS
from hf_posenc.eval.lm.causal_lm import PosEncLM

from .conftest import TRAINED
from .test_parity import PAIRS, requests


def asked() -> list:
    return requests("loglikelihood", PAIRS[:2])


def test_control_stock_cache_ignores_the_scheme(llama, tokenizer, tmp_path) -> None:
    """Control: what the tests below rule out."""
    first = CachingLM(HFLM(llama, tokenizer=tokenizer), str(tmp_path / "a.db")).loglikelihood(asked())
    patch_model(llama, "alibi", target_length=TRAINED)
    assert CachingLM(HFLM(llama, tokenizer=tokenizer), str(tmp_path / "a.db")).loglikelihood(asked()) == first
    assert HFLM(llama, tokenizer=tokenizer).loglikelihood(asked()) != first


@pytest.fixture
def scored(llama, tokenizer, tmp_path, monkeypatch):
    """Scores through one cache file, and how many requests the model itself was asked."""
    calls: list[int] = []
    plain = PosEncLM._loglikelihood_tokens

    def counted(self, requests, *args, **options):
        calls.append(len(requests))
        return plain(self, requests, *args, **options)

    monkeypatch.setattr(PosEncLM, "_loglikelihood_tokens", counted)

    def run(**options) -> tuple[list, int]:
        calls.clear()
        lm = CachingLM(PosEncLM(llama, tokenizer=tokenizer, **options), str(tmp_path / "answers.db"))
        return lm.loglikelihood(asked()), sum(calls)

    return run


def test_answers_are_kept(scored) -> None:
    first, new = scored()
    assert new == 2
    assert scored() == (first, 0)


@pytest.mark.parametrize(
    ("scheme", "options"),
    [
        ("yarn", {"factor": 2}),
        ("yarn", {"factor": 4}),
        ("yarn", {"factor": 2, "beta_fast": 8}),
        ("alibi", {"factor": 2}),
    ],
    ids=str,
)
def test_schemes_and_options_have_their_own_cache_entries(scheme: str, options: dict, scored, llama) -> None:
    plain, _ = scored()
    patch_model(llama, "yarn", factor=3)
    other, _ = scored()
    unpatch_model(llama)
    patch_model(llama, scheme, **options)
    answers, new = scored()
    assert new == 2
    assert answers != plain
    assert answers != other
    unpatch_model(llama)
    assert scored() == (plain, 0)  # still there


def test_lengths_and_weights_have_their_own_cache_entries(scored, llama) -> None:
    scored()
    assert scored(max_length=77)[1] == 2
    with torch.no_grad():
        llama.model.layers[0].self_attn.q_proj.weight.mul_(1.1)
    assert scored()[1] == 2


def test_rolling_and_generation_are_kept_too(llama, tokenizer, tmp_path) -> None:
    lm = CachingLM(PosEncLM(llama, tokenizer=tokenizer), str(tmp_path / "answers.db"))
    rolling = requests("loglikelihood_rolling", [("The sky is blue.",)])
    generation = requests("generate_until", [("The sky", {"until": [], "max_gen_toks": 4})])
    first = lm.loglikelihood_rolling(rolling), lm.generate_until(generation)
    lm.lm.model.forward = None  # whoever calls the model now fails
    assert (lm.loglikelihood_rolling(rolling), lm.generate_until(generation)) == first


@pytest.mark.slow
def test_cached_requests_are_those_of_the_lengths(llama, tokenizer, tmp_path, monkeypatch) -> None:
    import lm_eval.caching.cache as cache

    monkeypatch.setattr(cache, "PATH", str(tmp_path))
    lm = PosEncLM(llama, tokenizer=tokenizer, max_length=2 * TRAINED)

    def run(length: int) -> dict:
        metadata = {"lengths": [length], "keys": 2, "depths": [0.5], "tokenizer": tokenizer}
        manager = TaskManager(include_path=str(TASKS), include_defaults=False, metadata=metadata)
        found = simple_evaluate(lm, tasks=["posenc_passkey"], task_manager=manager, cache_requests=True)
        return {len(sample["arguments"][0][0]) for sample in found["samples"]["posenc_passkey"]}

    short, long = run(TRAINED), run(2 * TRAINED)
    assert max(short) < min(long)  # stock: the short prompts again, reported under the longer length
    assert run(TRAINED) == short

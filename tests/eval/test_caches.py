"""The two caches of lm-eval: responses by request, which is refused; requests by task name, which knows lengths."""

from __future__ import annotations

import pytest
from lm_eval import simple_evaluate
from lm_eval.api.model import CachingLM
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

from hf_posenc import patch_model
from hf_posenc.eval import TASKS
from hf_posenc.eval.errors import NotMeasurable
from hf_posenc.eval.lm.causal_lm import PosEncLM

from .conftest import TRAINED
from .test_parity import PAIRS, requests


def asked() -> list:
    return requests("loglikelihood", PAIRS[:2])


def test_control_stock_cache_ignores_the_scheme(llama, tokenizer, tmp_path) -> None:
    """Control: what is refused below."""
    first = CachingLM(HFLM(llama, tokenizer=tokenizer), str(tmp_path / "a.db")).loglikelihood(asked())
    patch_model(llama, "alibi", target_length=TRAINED)
    assert CachingLM(HFLM(llama, tokenizer=tokenizer), str(tmp_path / "a.db")).loglikelihood(asked()) == first
    assert HFLM(llama, tokenizer=tokenizer).loglikelihood(asked()) != first


def test_a_response_cache_is_refused(llama, tokenizer, tmp_path) -> None:
    with pytest.raises(NotMeasurable, match="use_cache"):
        CachingLM(PosEncLM(llama, tokenizer=tokenizer), str(tmp_path / "answers.db"))


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

"""Batches of unlike lengths, as on a GPU: fewer forward passes, and the numbers and texts of a batch of one."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest
import torch
from lm_eval.api.instance import Instance

from hf_posenc.eval.lm.batching import like_lengths
from hf_posenc.eval.lm.causal_lm import PosEncLM

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
    assert [[len(row) for row in batch] for batch in like_lengths(rows, lambda length: 8)] == [
        [100, 90, 76],
        [74, 60],
        [10],
    ]
    assert [len(batch) for batch in like_lengths(rows, lambda length: 2)] == [2, 2, 1, 1]

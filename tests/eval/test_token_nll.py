"""Loss by position: one pass where the scheme allows, and the numbers of a pass a length."""

from __future__ import annotations

import math

import pytest
import torch
from transformers import LlamaForCausalLM

from hf_posenc import patch_model
from hf_posenc.eval import evaluate
from hf_posenc.eval.lm.causal_lm import PosEncLM

from .conftest import TRAINED, VOCABULARY, alert, nats

LENGTHS = [32, 64, TRAINED, 2 * TRAINED]
SMALL = {"tasks": ["posenc_token_nll"], "lengths": LENGTHS, "samples": 3, "log_samples": True}
CONTINUED = ["yarn", "self_extend", "window"]
WHOLE = ["norm01"]


@pytest.fixture
def forwards(monkeypatch) -> list[int]:
    """Lengths of the forward passes of any Llama."""
    seen: list[int] = []
    plain = LlamaForCausalLM.forward

    def counted(self, input_ids=None, **options):
        seen.append(input_ids.shape[1])
        return plain(self, input_ids=input_ids, **options)

    counted.__signature__ = __import__("inspect").signature(plain)
    monkeypatch.setattr(LlamaForCausalLM, "forward", counted)
    return seen


def test_numbers_are_those_of_a_plain_forward(llama, tokenizer, text, forwards) -> None:
    evaluation = evaluate(llama, tokenizer, text=text, **SMALL)
    assert forwards == [LENGTHS[-1] - 1] * 3  # one pass a document
    rows = {(r.metric, r.length): r for r in evaluation.rows}
    texts = [sample["arguments"][-1][1] for sample in evaluation.raw["samples"]["posenc_token_nll"]]
    documents = torch.stack([nats(llama, ids, len(ids) - 1) for ids in texts])
    for before, length in zip([0, *LENGTHS], LENGTHS, strict=False):
        stretch = documents[:, max(before - 1, 0) : length - 1].mean(-1)
        whole = documents[:, : length - 1].mean(-1)
        for name, expected in (("", stretch), ("prefix_", whole)):
            row = rows[f"{name}nll", length]
            assert row.value == pytest.approx(expected.mean().item(), rel=1e-5)
            assert row.stderr == pytest.approx(expected.std().item() / math.sqrt(3), rel=1e-3)
            assert rows[f"{name}ppl", length].value == pytest.approx(math.exp(row.value))
            assert rows[f"{name}ppl", length].stderr == pytest.approx(math.exp(row.value) * row.stderr)


@pytest.mark.parametrize("scheme", CONTINUED)
def test_one_pass_serves_every_length(scheme: str, llama, tokenizer, text, forwards, monkeypatch) -> None:
    options = {"window": {"size": 50}}.get(scheme, {})
    patch_model(llama, scheme, target_length=LENGTHS[-1], **options)
    forwards.clear()
    one = evaluate(llama, tokenizer, text=text, **SMALL)
    assert len(forwards) == 3
    monkeypatch.setattr(PosEncLM, "prefixes", False)
    many = evaluate(llama, tokenizer, text=text, **SMALL)
    assert len(forwards) == 3 + 3 * len(LENGTHS)
    assert [r.value for r in one.rows] == pytest.approx([r.value for r in many.rows], rel=1e-5)


@pytest.mark.parametrize("scheme", WHOLE)
def test_length_dependent_schemes_take_one_pass_per_length(
    scheme: str, llama, tokenizer, text, forwards, monkeypatch
) -> None:
    options = {"norm01": {"direction": "learned"}}.get(scheme, {})
    patch_model(llama, scheme, target_length=LENGTHS[-1], **options)
    forwards.clear()
    many = evaluate(llama, tokenizer, text=text, **SMALL)
    assert sorted(forwards) == sorted(3 * [length - 1 for length in LENGTHS])
    monkeypatch.setattr(PosEncLM, "prefixes", True)
    one = evaluate(llama, tokenizer, text=text, **SMALL)
    assert [r.value for r in one.rows] != pytest.approx([r.value for r in many.rows], rel=1e-4)  # control


def test_random_positions_are_equal_in_any_batch(llama, tokenizer, text) -> None:
    patch_model(llama, "randpos", target_length=LENGTHS[-1], test="random")
    alone = evaluate(llama, tokenizer, text=text, **SMALL)
    torch.manual_seed(1)
    together = evaluate(llama, tokenizer, text=text, batch_size=3, **SMALL)
    assert together.rows == alone.rows


def test_capped_logits_are_not_taken_for_plain_ones(tokenizer, text, monkeypatch) -> None:
    """A model that does more than apply its head is asked for its own logits."""
    from transformers import Gemma2Config, Gemma2ForCausalLM

    config = Gemma2Config(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, max_position_embeddings=TRAINED, final_logit_softcapping=2.0,
    )  # fmt: skip
    model = alert(Gemma2ForCausalLM(config))
    small = SMALL | {"lengths": [64], "text": text}
    expected = evaluate(model, tokenizer, **small)
    monkeypatch.setattr("hf_posenc.eval.lm.log_probs.WHOLE", 0)
    monkeypatch.setattr("hf_posenc.eval.lm.log_probs.HELD", 10 * VOCABULARY)
    assert evaluate(model, tokenizer, **small).rows == expected.rows
    monkeypatch.setattr("hf_posenc.eval.lm.log_probs.plain_head", lambda model, ids: model.lm_head)
    assert evaluate(model, tokenizer, **small).rows != expected.rows  # control

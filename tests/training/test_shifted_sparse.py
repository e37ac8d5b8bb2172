"""Shifted sparse attention: equal to dense attention under a mask for every head, in float64, and only in training."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import BertConfig, BertForMaskedLM, LlamaConfig, LlamaForCausalLM

pytest.importorskip("peft", reason="fine-tuning needs the extra `train`")

from hf_posenc import patch_model
from hf_posenc.errors import TrainingImpossible
from hf_posenc.training import RECIPES, Training, finetune
from hf_posenc.training.shifted_attention import shifted_groups
from tests.training.test_recipes import Rows

TRAINED, LENGTH, GROUP = 16, 32, 8
KINDS = (
    "rope", "yarn", "alibi", "t5", "kerple", "yarn+logn", "fox", "self_extend", "dynamic_ntk", "window", "yarn+pose",
)  # fmt: skip
"""Plain rotations, biases of keys and distances (learned too), scales, regions, rotations by row, bands, gaps."""


def llama(heads: int = 4, kv_heads: int = 2, backend: str = "sdpa") -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32, hidden_size=8 * heads, intermediate_size=48, num_hidden_layers=2, num_attention_heads=heads,
        num_key_value_heads=kv_heads, max_position_embeddings=TRAINED, initializer_range=0.3,
        attn_implementation=backend,
    )  # fmt: skip
    return LlamaForCausalLM(config).double()


def ids(length: int = LENGTH, rows: int = 2) -> Tensor:
    return torch.randint(0, 32, (rows, length), generator=torch.Generator().manual_seed(1))


def dense_mask(heads: int, length: int, group: int, *, shift: int | None = None) -> Tensor:
    """What every head sees, ``[1, heads, query, key]``: the floors of the module's formula, pair by pair."""
    at = torch.arange(length)
    shift = group // 2 if shift is None else shift
    own = at // group
    shifted = (at + shift) // group
    causal = at[:, None] >= at
    halves = [(names[:, None] == names) & causal for names in (own, shifted)]
    return torch.stack([halves[0]] * (heads // 2) + [halves[1]] * (heads // 2))[None]


def grouped(model, tokens: Tensor, group: int = GROUP, **call) -> Tensor:
    with shifted_groups(model, group):
        return model.train()(tokens, **call).logits


@pytest.mark.parametrize("scheme", ["rope", "none"])
@pytest.mark.parametrize("backend", ["sdpa", "eager"])
def test_equal_to_the_stock_class_under_a_dense_mask(scheme: str, backend: str) -> None:
    stock = llama(backend="eager")
    if scheme == "none":  # a stock model whose rotation is by 0
        stock.model.rotary_emb.inv_freq.zero_()
    expected = stock(ids(), attention_mask=torch.where(dense_mask(4, LENGTH, GROUP), 0.0, -torch.inf).double()).logits
    found = grouped(patch_model(llama(backend=backend), scheme, factor=2), ids())
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)  # norms are float32
    unshifted = torch.where(dense_mask(4, LENGTH, GROUP, shift=0), 0.0, -torch.inf).double()
    assert (found - stock(ids(), attention_mask=unshifted).logits).abs().max() > 1e-3, "the control: no shift"


@pytest.mark.parametrize("scheme", KINDS)
def test_every_kind_of_terms_equals_a_dense_mask(scheme: str) -> None:
    model = patch_model(llama(), scheme, factor=2)
    for parameter in model.parameters():  # learned tables that begin at zero have an effect
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2))
    if scheme.endswith("pose"):
        model.set_attn_implementation("eager")
    torch.manual_seed(3)
    found = grouped(model, ids())
    torch.manual_seed(3)
    model.set_attn_implementation("eager")
    expected = model(ids(), attention_mask=dense_mask(4, LENGTH, GROUP)).logits
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)  # learned biases are float32


def test_gradients_are_those_of_a_dense_mask() -> None:
    model = patch_model(llama(), "yarn", factor=2)
    grouped(model, ids()).pow(2).mean().backward()
    found = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    model.set_attn_implementation("eager")
    model(ids(), attention_mask=dense_mask(4, LENGTH, GROUP)).logits.pow(2).mean().backward()
    for gradient, parameter in zip(found, model.parameters(), strict=True):
        torch.testing.assert_close(gradient, parameter.grad, atol=1e-6, rtol=0)


def test_evaluation_is_full_attention_and_the_block_leaves_nothing_behind() -> None:
    model = patch_model(llama(), "yarn", factor=2)
    whole = model.eval()(ids()).logits
    with shifted_groups(model, GROUP):
        assert torch.equal(model(ids()).logits, whole)
    assert torch.equal(model.train()(ids()).logits, whole)


def test_documents_apart_stay_apart() -> None:
    model = patch_model(llama(), "rope", factor=2)
    positions = torch.cat([torch.arange(13), torch.arange(LENGTH - 13)])[None]
    found = grouped(model, ids(rows=1), position_ids=positions, use_cache=False)
    apart = dense_mask(4, LENGTH, GROUP)
    apart[..., 13:, :13] = False
    model.set_attn_implementation("eager")
    expected = model(ids(rows=1), position_ids=positions, attention_mask=apart).logits
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("model", "scheme", "call", "said"),
    [
        (lambda: llama(3, 3), "yarn", {}, "3 query heads"),
        (lambda: llama(1, 1), "yarn", {}, "1 query heads into"),
        (llama, "yarn", {"input_ids": ids(36)}, "36 tokens"),
        (llama, "yarn", {"attention_mask": torch.arange(LENGTH)[None].repeat(2, 1) > 3}, "padded rows"),
        (llama, "yarn", {"output_attentions": True}, "attention weights"),
        (llama, "cope", {}, "positional terms"),
    ],
)
def test_calls_that_cannot_be_divided_are_refused(model, scheme: str, call: dict, said: str) -> None:
    patched = patch_model(model(), scheme, factor=4)
    with shifted_groups(patched, GROUP), pytest.raises(TrainingImpossible, match=said):
        patched.train()(**{"input_ids": ids(), **call})


def test_runs_where_it_has_no_effect_are_refused() -> None:
    training = Training(length=16, steps=1, attention_groups=2)
    with pytest.raises(TrainingImpossible, match="not patched"):
        finetune(llama(), None, Rows(16), training)
    for model, scheme, said in ((llama(3, 3), "yarn", "3 query heads"), (llama(), "cope", "positional terms")):
        with pytest.raises(TrainingImpossible, match=said):
            finetune(patch_model(model, scheme, factor=4), None, Rows(16), training)
    encoder = BertForMaskedLM(
        BertConfig(vocab_size=32, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=32)
    )
    with pytest.raises(TrainingImpossible, match="causal models"):
        finetune(patch_model(encoder, "alibi"), None, Rows(16), training)


def test_a_run_of_the_recipe_trains_in_groups_and_saves_an_ordinary_model(tmp_path: Path) -> None:
    model = patch_model(llama().float(), "yarn", factor=4)
    training = RECIPES["shifted_sparse"].training(model, steps=2, method="full", learning_rate=1e-2)
    assert (training.length, training.attention_groups) == (4 * TRAINED, 4)
    seen: list[tuple[int, ...]] = []
    attend = torch.nn.functional.scaled_dot_product_attention

    def record(query: Tensor, *args, **kwargs) -> Tensor:
        seen.append(tuple(query.shape[1:3]))
        return attend(query, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.nn.functional, "scaled_dot_product_attention", record)
        tuned = finetune(model, None, Rows(64), training, out=tmp_path)
    before = {(4, 8)}  # the trial of the loss on eight tokens
    assert before | {(2, 16), (2, 8)} == set(seen), "half of the heads: whole and half groups"
    assert json.loads((tmp_path / "run.json").read_text())["attention_groups"] == 4
    assert "group" not in (tmp_path / "config.json").read_text()
    whole = tuned.model.eval()(ids(64)).logits
    assert torch.equal(tuned.model.train()(ids(64)).logits, whole)

"""Models by name: base, then scheme, then PEFT adapter; and the stock command line of lm-eval."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    BartForConditionalGeneration,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    T5ForConditionalGeneration,
)

from hf_posenc import patch_model
from hf_posenc.errors import CheckpointMismatch
from hf_posenc.eval import compare, evaluate
from hf_posenc.eval.errors import NotMeasurable
from hf_posenc.eval.lm.causal_lm import PosEncLM
from hf_posenc.eval.texts.measured_text import module_text
from hf_posenc.insight.probe import probe

from .conftest import TRAINED
from .test_parity import PAIRS, requests


@pytest.fixture
def folder(llama, tokenizer, tmp_path):
    llama.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def scores(lm: PosEncLM) -> list[float]:
    return [score for score, _ in lm.loglikelihood(requests("loglikelihood", PAIRS))]


def test_a_name_and_a_scheme_are_a_patched_model(folder, llama, tokenizer) -> None:
    named = PosEncLM(str(folder), scheme="yarn", factor=4, beta_fast=16, device="cpu")
    live = PosEncLM(patch_model(llama, "yarn", factor=4, beta_fast=16), tokenizer=tokenizer)
    assert named.max_length == 4 * TRAINED
    assert scores(named) == pytest.approx(scores(live), rel=1e-6)


@pytest.mark.parametrize("kind", [BartForConditionalGeneration, T5ForConditionalGeneration])
def test_an_encoder_decoder_is_refused(kind: Any, tokenizer, tmp_path) -> None:
    """Its encoder would read the tokens to score."""
    small = {"d_model": 32, "vocab_size": 512, "pad_token_id": 1, "decoder_start_token_id": 0}
    bart = {"encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
    own = {**bart, "max_position_embeddings": 128} if kind is BartForConditionalGeneration else {"num_layers": 1}
    model = kind(kind.config_class(**small, **own)).eval()
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    for one, its in ((model, tokenizer), (str(tmp_path / "model"), None)):
        with pytest.raises(NotMeasurable, match="is an encoder–decoder"):
            evaluate(one, its, tasks=["posenc_ppl"], lengths=[64], samples=1, scored=16)


def test_trained_copies_of_tied_weights_are_left_alone(tokenizer) -> None:
    """``hf`` ties weights when it is built, which PEFT's copies of tied embeddings do not survive."""
    peft = pytest.importorskip("peft")
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=TRAINED, tie_word_embeddings=True,
    )  # fmt: skip
    lora = peft.LoraConfig(r=2, target_modules=["q_proj"], modules_to_save=["embed_tokens"], ensure_weight_tying=True)
    tuned = peft.get_peft_model(LlamaForCausalLM(config), lora)
    ids = torch.arange(20)[None]
    before = tuned.eval()(input_ids=ids).logits
    assert min(scores(PosEncLM(tuned, tokenizer=tokenizer))) < 0
    assert torch.equal(tuned(input_ids=ids).logits, before)
    assert "tie_weights" not in vars(tuned)


def test_masked_models_by_name(bert, framed_tokenizer, tmp_path) -> None:
    bert.save_pretrained(tmp_path / "bert")
    framed_tokenizer.save_pretrained(tmp_path / "bert")
    text = tmp_path / "text.txt"
    text.write_text(module_text("bisect") * 2, encoding="utf-8")
    options = {
        "lengths": [4 * TRAINED],
        "samples": 2,
        "scored": 16,
        "tasks": ["posenc_mlm"],
        "text": text,
        "device": "cpu",
    }
    evaluation = evaluate(str(tmp_path / "bert"), scheme="alibi", target_length=4 * TRAINED, **options)
    assert {r.scheme for r in evaluation.rows} == {"alibi"}
    with pytest.raises(Exception, match=r"index|size|length|position"):  # its own table ends at half of that
        evaluate(bert, framed_tokenizer, **options)
    assert torch.isfinite(torch.tensor([r.value for r in evaluation.rows])).all()


@pytest.mark.parametrize("measure", ["evaluate", "compare", "probe"])
def test_a_live_model_keeps_the_mode_of_every_module(measure: str, llama, tokenizer, tmp_path: Path) -> None:
    """It may be measured in the middle of its training, a part of it frozen in evaluation mode."""
    llama.train()
    llama.model.layers[0].eval()
    modes = [module.training for module in llama.modules()]
    few: dict[str, Any] = {"tasks": ["posenc_ppl"], "lengths": [TRAINED], "samples": 1, "scored": 8}
    if measure == "evaluate":
        evaluate(llama, tokenizer, **few)
    elif measure == "compare":
        compare(llama, "pi", tokenizer=tokenizer, out=tmp_path, **few)
    else:
        probe(llama, tokenizer, samples=1, rows=1, scored=8)
    assert [module.training for module in llama.modules()] == modes
    assert len(set(modes)) == 2


def test_a_checkpoint_without_a_head_is_refused(llama, tokenizer, tmp_path) -> None:
    """Its head would be random: a classifier is no language model."""
    config = llama.config.to_dict() | {"tie_word_embeddings": False, "num_labels": 2}
    LlamaForSequenceClassification(LlamaConfig(**config)).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(CheckpointMismatch, match=r"lacks 'lm_head\.weight'"):
        PosEncLM(str(tmp_path), device="cpu")


@pytest.mark.parametrize("left", [None, "{nope"], ids=["missing", "damaged"])
def test_a_tokenizer_that_cannot_be_read_is_named_with_its_folder(folder, left: str | None) -> None:
    file = folder / "tokenizer.json"
    file.unlink()
    if left is None:
        (folder / "tokenizer_config.json").unlink()
    else:
        file.write_text(left)
    with pytest.raises(CheckpointMismatch, match=str(folder)):
        evaluate(str(folder), lengths=[64], tasks=["posenc_ppl"])
